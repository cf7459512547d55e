//! Peers behind queues, beside plain sockets: what a signal and a range take on their way, and how long the bytes of an
//! operation would be on theirs.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use clap::ValueEnum;
use epwire::{Group, Path, internals::Trial};
use serde::{Deserialize, Serialize};

use crate::args::{Args, Combine, Shape};
use crate::cases::Case;
use crate::nic::Nic;
use crate::report::word;
use crate::routing::Routing;
use crate::samples::{Meeting, Samples, across_hosts, now, percentile, spans, taken};
use crate::{Error, ranks};

/// `--wire`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    Local,
    Tcp,
    Verbs,
}

/// How the first rank reaches the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reach {
    /// As the library prints paths, each once; absent in files of older builds, and of a rank alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What drains queues, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<Nic>,
    /// What carries the queues' bytes; not said: what each two ranks have chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
}

impl Reach {
    /// `paths`: to every rank.
    pub fn new(args: &Args, paths: impl Iterator<Item = Path>) -> Self {
        let mut names: Vec<String> = Vec::new();
        let mut queues = false;
        for path in paths.filter(|path| !matches!(path, Path::None | Path::SelfRank)) {
            queues |= matches!(path, Path::Queue(_));
            names.push(path.to_string());
        }
        names.sort_unstable();
        names.dedup();
        Self {
            path: (!names.is_empty()).then(|| names.join(", ")),
            nic: queues.then(nic),
            wire: args.wire.filter(|_| queues),
        }
    }

    /// As part of a case's name. Nothing where all peers are mapped; `queues`: whether they are known not to be.
    pub fn name(&self, queues: bool) -> String {
        if !queues && self.nic.is_none() {
            return String::new();
        }
        let nic = self.nic.filter(|nic| *nic != Nic::Soft).as_ref().map(word);
        let words = nic.into_iter().chain(self.wire.as_ref().map(word));
        words.fold(", queue".to_owned(), |name, word| format!("{name} {word}"))
    }
}

/// What drains this rank's queues, if it has any.
fn nic() -> Nic {
    let asked = epwire::env::value(epwire::env::NIC);
    asked.and_then(|name| Nic::from_str(name.trim(), false).ok()).unwrap_or(Nic::Soft)
}

/// What a row has beside where all peers are behind queues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OnQueue {
    /// Plain TCP streams between as many processes take so long for the rows that leave their ranks, in microseconds: the median.
    pub stream_us: f64,
    #[serde(flatten)]
    pub way: Way,
}

/// The way from the first rank to the second and back, and plain TCP beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// A put of 8 bytes with its signal, one way, in microseconds; half of a blocking TCP ping-pong of 8 bytes.
    pub put_us: f64,
    pub half_ping_us: f64,
    /// Ranges of 1 MiB; a TCP stream written and read by pieces of 1 MiB. 1e9 bytes a second.
    pub put_gbs: f64,
    pub stream_gbs: f64,
}

/// Whether `--paths`, or the environment, leaves queues alone.
pub fn asked() -> bool {
    epwire::env::value(epwire::env::PATHS).is_some_and(|names| names.trim() == "queue")
}

/// What the options ask for as the library hears it. Before any thread is started.
pub fn tell(args: &Args) {
    let tell = |value: Option<String>, name| {
        if let Some(value) = value {
            // SAFETY: this process has one thread so far.
            unsafe { std::env::set_var(name, value) };
        }
    };
    tell(args.paths.clone(), epwire::env::PATHS);
    tell(args.nic.as_ref().map(word), epwire::env::NIC);
    tell(args.wire.as_ref().map(word), epwire::env::WIRES);
}

/// A connection to each other rank, by rank.
#[derive(Debug)]
pub struct Sockets(Vec<Option<TcpStream>>);

const MEBIBYTE: usize = 1 << 20;
/// Of one put.
const RANGES: u32 = 16;
const PINGS: usize = 1000;
const ROUNDS: usize = 4;

/// Rounds of streams on each side of a case.
const STREAMS: usize = 5;

/// How long a rank of another host may take to be reached.
const DIAL: Duration = Duration::from_secs(10);

/// The address by which this host reaches one of the servers of the run, for peers; else that of loopback.
fn own_address(servers: &[String]) -> IpAddr {
    let addresses = servers.iter().filter_map(|server| server.to_socket_addrs().ok()).flatten();
    let own = |server: SocketAddr| {
        let any: IpAddr =
            if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(server).ok()?; // sends nothing
        Some(socket.local_addr().ok()?.ip())
    };
    addresses.into_iter().find_map(own).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

impl Sockets {
    /// All ranks call it: of two the higher one dials.
    pub fn connect(group: &Group) -> Result<Self, Error> {
        let (rank, count) = (group.rank() as usize, ranks::count(group) as usize);
        let listener = TcpListener::bind((own_address(&group.servers()), 0))?;
        let mut blobs = vec![Vec::new(); group.world() as usize];
        blobs[..count].fill(listener.local_addr()?.to_string().into_bytes());
        let told = group.exchange_blocking("sockets", blobs)?;
        let mut sockets: Vec<_> = (0..count).map(|_| None).collect();
        for (peer, told) in taken(&told).enumerate().take(rank) {
            let address: SocketAddr = std::str::from_utf8(told)?.parse()?;
            let mut socket = TcpStream::connect_timeout(&address, DIAL)
                .map_err(|error| format!("no plain socket to rank {peer} at {address}: {error}"))?;
            socket.write_all(&(rank as u32).to_le_bytes())?;
            sockets[peer] = Some(socket);
        }
        for _ in rank + 1..count {
            let mut dialled = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which lives here.
            if unsafe { libc::poll(&raw mut dialled, 1, 2 * DIAL.as_millis() as libc::c_int) } == 0 {
                return Err("a rank has not dialled this one's plain socket".into());
            }
            let (mut socket, _) = listener.accept()?;
            let mut peer = [0; 4];
            socket.read_exact(&mut peer)?;
            *sockets.get_mut(u32::from_le_bytes(peer) as usize).ok_or("a stranger has connected")? =
                Some(socket);
        }
        sockets.iter().flatten().try_for_each(|socket| socket.set_nodelay(true))?;
        Ok(Self(sockets))
    }

    fn to(&self, peer: usize) -> Result<&TcpStream, Error> {
        Ok(self.0.get(peer).and_then(Option::as_ref).ok_or("no such rank")?)
    }

    /// All ranks send each other this many bytes, `sent[source][target]`: how long each round took in microseconds, on rank 0; but
    /// for the first, which makes the sockets' buffers grow. One thread of each writes, the other reads.
    pub fn stream(&self, group: &Group, meeting: &Meeting, sent: &[Vec<u64>]) -> Result<Vec<f64>, Error> {
        let rank = group.rank() as usize;
        let extent = |bytes: &u64| vec![1u8; *bytes as usize];
        let out: Vec<_> = sent[rank].iter().map(extent).collect();
        let mut into: Vec<_> = sent.iter().map(|of| extent(&of[rank])).collect();
        let mut samples = Samples::default();
        for _ in 0..1 + STREAMS {
            meeting.meet()?;
            let begin = now();
            std::thread::scope(|scope| -> Result<(), Error> {
                let writer = scope.spawn(|| self.write(&out));
                self.read(&mut into)?;
                Ok(writer.join().map_err(|_| "the writer has panicked")??)
            })?;
            samples.moments.push([begin, now()]);
        }
        let all = samples.gather(group)?.unwrap_or_default();
        Ok(spans(&all, across_hosts(group)).into_iter().skip(1).map(|span| span.0 as f64 / 1e3).collect())
    }

    /// A piece to each in turn.
    fn write(&self, out: &[Vec<u8>]) -> std::io::Result<()> {
        let longest = out.iter().map(Vec::len).max().unwrap_or(0);
        for at in (0..longest).step_by(MEBIBYTE) {
            for (socket, bytes) in self.0.iter().zip(out) {
                let piece = &bytes[at.min(bytes.len())..(at + MEBIBYTE).min(bytes.len())];
                if let Some(mut socket) = socket.as_ref() {
                    socket.write_all(piece)?;
                }
            }
        }
        Ok(())
    }

    /// Whatever comes first.
    fn read(&self, into: &mut [Vec<u8>]) -> Result<(), Error> {
        let mut left: Vec<usize> =
            self.0.iter().zip(&*into).map(|(s, b)| if s.is_some() { b.len() } else { 0 }).collect();
        while left.iter().any(|left| *left > 0) {
            let fd = |(socket, left): (&Option<TcpStream>, &usize)| {
                let fd = socket.as_ref().filter(|_| *left > 0).map_or(-1, AsRawFd::as_raw_fd);
                libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
            };
            let mut polls: Vec<_> = self.0.iter().zip(&left).map(fd).collect();
            // SAFETY: the array lives here; descriptors of -1 are ignored.
            unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
            for (peer, poll) in polls.iter().enumerate().filter(|(_, poll)| poll.revents != 0) {
                let bytes = &mut into[peer];
                let at = bytes.len() - left[peer];
                let end = bytes.len().min(at + MEBIBYTE);
                match self.to(peer)?.read(&mut bytes[at..end])? {
                    0 => return Err(format!("poll {}: rank {peer} has left", poll.fd).into()),
                    n => left[peer] -= n,
                }
            }
        }
        Ok(())
    }
}

/// Bytes of rows from each rank to each, none to itself: the P and H of `--help`, without headers.
pub fn sent(case: Case, shape: &Shape, routings: &[Routing]) -> Vec<Vec<u64>> {
    let count = routings.len();
    let local_experts = shape.experts / count as u32;
    let row = 2 * u64::from(shape.hidden);
    let payload = shape.payload_bytes();
    let mut sent = vec![vec![0; count]; count];
    for (source, routing) in routings.iter().enumerate() {
        for token in 0..routing.tokens() {
            for rank in routing.ranks_of(token, local_experts).into_iter().map(|rank| rank as usize) {
                let experts =
                    routing.of(token).filter(|(e, _)| (e / local_experts) as usize == rank).count() as u64;
                let answers = if shape.combine == Combine::Ordered { experts } else { 1 };
                if rank != source && case != Case::Combine {
                    sent[source][rank] += payload;
                }
                if rank != source && case != Case::Dispatch {
                    sent[rank][source] += answers * row;
                }
            }
        }
    }
    sent
}

impl Way {
    /// All ranks call it; the first two are measured, and the first has the figures, the best of several rounds each, floors
    /// and puts in turns.
    pub fn measure(group: &Group, meeting: &Meeting, sockets: &Sockets) -> Result<Self, Error> {
        let trial = Trial::connect_blocking(group, MEBIBYTE as u64, RANGES)?;
        let mut best =
            Self { put_us: f64::INFINITY, half_ping_us: f64::INFINITY, put_gbs: 0.0, stream_gbs: 0.0 };
        let mut memory = vec![1u8; RANGES as usize * MEBIBYTE];
        let rank = group.rank();
        let mut number = 0;
        for _ in 0..ROUNDS {
            meeting.meet()?;
            if rank < 2 {
                let socket = sockets.to(1 - rank as usize)?;
                best.half_ping_us =
                    best.half_ping_us.min(ping(|begins| one_word(socket, rank == 0, begins))?);
                best.put_us = best.put_us.min(ping(|begins| one_put(&trial, rank, &mut number, begins))?);
                let stream = timed(|| plain(socket, rank, &mut memory))?;
                best.stream_gbs = best.stream_gbs.max(memory.len() as f64 / stream);
                let put = timed(|| ranges(&trial, rank, &mut number))?;
                best.put_gbs = best.put_gbs.max(memory.len() as f64 / put);
            }
            meeting.meet()?;
        }
        Ok(best)
    }

    /// In words.
    pub fn words(&self, wire: Option<Wire>) -> String {
        let Self { put_us, half_ping_us, put_gbs, stream_gbs } = self;
        let (nic, wire) =
            (word(&nic()), wire.as_ref().map_or_else(String::new, |wire| format!(", {}", word(wire))));
        format!(
            "queue, {nic} NIC{wire}, rank 0 to rank 1: put of 8 bytes with its signal {put_us:.1} us one way, {:.2} times half of a \
             blocking TCP ping-pong, {half_ping_us:.1} us; ranges of 1 MiB {put_gbs:.2} GB/s, {:.2} of a plain TCP stream, \
             {stream_gbs:.2} GB/s",
            put_us / half_ping_us,
            put_gbs / stream_gbs
        )
    }
}

/// The median of half a round trip, in microseconds.
fn ping(mut turn: impl FnMut(bool) -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begin = now();
        turn(true)?;
        turn(false)?;
        times.push((now() - begin) as f64);
    }
    Ok(percentile(&times, 50) / 2e3)
}

/// The first sends in its first half of a turn, the second in its second.
fn one_word(mut socket: &TcpStream, first: bool, begins: bool) -> Result<(), Error> {
    match first == begins {
        true => socket.write_all(&[1; 8])?,
        false => socket.read_exact(&mut [0; 8])?,
    }
    Ok(())
}

fn one_put(trial: &Trial, rank: u32, number: &mut u64, begins: bool) -> Result<(), Error> {
    *number += u64::from(begins);
    match (rank == 0) == begins {
        true => trial.put(1 - rank, 8, 1, *number)?,
        false => trial.wait(1 - rank, 8, 1, *number)?,
    }
    Ok(())
}

/// Nanoseconds of the fastest of four.
fn timed(mut once: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = u64::MAX;
    for _ in 0..4 {
        let begin = now();
        once()?;
        best = best.min(now() - begin);
    }
    Ok(best as f64)
}

/// By pieces of 1 MiB, and a word back when all are there.
fn plain(mut socket: &TcpStream, rank: u32, memory: &mut [u8]) -> Result<(), Error> {
    for piece in memory.chunks_mut(MEBIBYTE) {
        match rank {
            0 => socket.write_all(piece)?,
            _ => socket.read_exact(piece)?,
        }
    }
    one_word(socket, rank == 0, false)
}

/// The same by one put, and one of 8 bytes back.
fn ranges(trial: &Trial, rank: u32, number: &mut u64) -> Result<(), Error> {
    *number += 1;
    if rank == 0 {
        trial.put(1, MEBIBYTE as u64, RANGES, *number)?;
        trial.wait(1, 8, 1, *number)?;
    } else {
        trial.wait(0, MEBIBYTE as u64, RANGES, *number)?;
        trial.put(0, 8, 1, *number)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Layout;
    use crate::args::Payload;
    use crate::routing::Spread;

    const SHAPE: Shape = Shape {
        tokens: 10,
        hidden: 256,
        experts: 16,
        absent_experts: 0,
        topk: 4,
        payload: Payload::Bf16,
        layout: Layout::RankMajor,
        combine: Combine::Reduced,
    };

    #[test]
    fn bytes_of_streams_are_those_of_rows_to_others() {
        let routings: Vec<_> = (0..4).map(|s| Routing::new(Spread::One, &SHAPE, s)).collect();
        let to_first = sent(Case::Dispatch, &SHAPE, &routings);
        assert_eq!(to_first, [vec![0; 4], vec![5120, 0, 0, 0], vec![5120, 0, 0, 0], vec![5120, 0, 0, 0]]);
        let back = sent(Case::Combine, &SHAPE, &routings);
        assert_eq!(back, [vec![0, 5120, 5120, 5120], vec![0; 4], vec![0; 4], vec![0; 4]]);
        let ordered = Shape { combine: Combine::Ordered, layout: Layout::ExpertMajor, ..SHAPE };
        assert_eq!(sent(Case::Combine, &ordered, &routings)[0], [0, 4 * 5120, 4 * 5120, 4 * 5120]);
        assert_eq!(sent(Case::Pair, &SHAPE, &routings)[0][1], 5120);
    }

    #[test]
    fn plain_sockets_have_the_address_by_which_the_run_is_reached() {
        let own = |servers: &[&str]| {
            own_address(&servers.iter().map(|&server| server.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(own(&[]), Ipv4Addr::LOCALHOST);
        assert_eq!(own(&["nonsense", "127.0.0.1:29700"]), Ipv4Addr::LOCALHOST);
        assert_eq!(own(&["[::1]:29700"]), Ipv6Addr::LOCALHOST);
    }

    #[test]
    fn a_case_s_name_has_the_queues_by_which_peers_are_reached() {
        let paths = |wire| [Path::SelfRank, Path::Queue(wire), Path::Ipc, Path::Queue(wire)].into_iter();
        let args = <Args as clap::Parser>::parse_from(["bench", "--wire", "tcp"]);
        let reach = Reach::new(&args, paths(epwire::Wire::Tcp));
        assert_eq!(reach.path.as_deref(), Some("CUDA IPC, queue over TCP"));
        assert_eq!((reach.nic, reach.name(false).as_str()), (Some(Nic::Soft), ", queue tcp"));
        let strict = Reach { nic: Some(Nic::Strict), wire: None, ..reach.clone() };
        assert_eq!(strict.name(false), ", queue strict");
        let mapped = Reach::new(&args, [Path::SelfRank, Path::Vmm].into_iter());
        assert_eq!((mapped.name(false).as_str(), mapped.nic, mapped.wire), ("", None, None));
        // Files of older builds have no path.
        assert_eq!(Reach::default().name(true), ", queue");
        assert_eq!(Reach::new(&args, [Path::SelfRank].into_iter()), Reach::default());
    }

    #[test]
    fn a_way_and_streams_are_measured_between_ranks() {
        let groups = Group::threads(2).unwrap();
        let measure = |group: &Group| {
            let (meeting, sockets) = (Meeting::new(group).unwrap(), Sockets::connect(group).unwrap());
            let us = sockets.stream(group, &meeting, &[vec![0, 3 << 20], vec![100, 0]]).unwrap();
            let us = us.into_iter().fold(f64::INFINITY, f64::min);
            (us, Way::measure(group, &meeting, &sockets).unwrap())
        };
        let (us, way) = std::thread::scope(|scope| {
            let other = scope.spawn(|| measure(&groups[1]));
            let first = measure(&groups[0]);
            other.join().unwrap();
            first
        });
        assert!(
            us > 0.0 && us.is_finite() && way.put_us > 0.0 && way.half_ping_us.is_finite(),
            "{us} {way:?}"
        );
        assert!(way.put_gbs > 0.0 && way.stream_gbs > 0.0, "{way:?}");
        assert!(way.words(Some(Wire::Tcp)).contains("soft NIC, tcp"));
    }
}
