//! The guide's loop in processes that serve a run themselves, and that are killed, stopped and replaced.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use epwire::rendezvous::driver::ServerOptions;

use super::*;

/// Set for the process of a rank: its number, how many ranks begin, the addresses of the run and the milliseconds that
/// a call may take, separated by spaces.
const VARIABLE: &str = "EPWIRE_STEPS_RANK";
/// How long a call may take in a process that is to see several calls end without an outcome.
const IMPATIENT: Duration = Duration::from_millis(300);

/// Runs steps until its input ends. Prints each membership in which it has run a complete step, the servers that it
/// knows then, and the address of its own.
#[test]
#[ignore = "the process of a rank, which the test below starts"]
fn a_process() {
    let Ok(words) = std::env::var(VARIABLE) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let [rank, initial, servers, patience] = words[..] else { panic!("{words:?}") };
    let [rank, initial, patience] = [rank, initial, patience].map(|number| number.parse::<u32>().unwrap());
    // SAFETY: a plain system call. The kernel kills this process when the test dies.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let ends = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let ends = Arc::clone(&ends);
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ends.store(true, Ordering::Relaxed);
        }
    });
    let options = GroupOptions::new(rank, RANKS, servers)
        .initial(initial)
        // Otherwise the test hosts it.
        .host_server(initial == RANKS && rank == 0 && !servers.contains(','))
        .run_id("run")
        .heartbeat(heartbeat())
        .join_deadline(PATIENT)
        .deadline(Duration::from_millis(patience.into()));
    let (mut memory, mut said) = (None, String::new());
    let run = async |group: &Group, buffer: &EpBuffer, step: &Step| {
        let memory = match &mut memory {
            Some(memory) => memory,
            None => memory.insert(buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0)?),
        };
        let missing = exchange(buffer, memory, step.number)?;
        let own = group.server().map(|server| server.local_addr().to_string()).unwrap_or_default();
        let now = format!("{} {} {own}", buffer.membership()?.active, group.servers().join(","));
        if missing.is_empty() && said != now {
            eprintln!("{now}");
            said = now;
        }
        thread::sleep(Duration::from_millis(1)); // the program's time beside its steps
        Ok(!ends.load(Ordering::Relaxed))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    if let Err(error) = runtime.block_on(serve(options, config(), run)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

struct Process {
    rank: u32,
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    fn start(rank: u32, servers: &str) -> Self {
        Self::start_with(rank, RANKS, servers, PATIENT)
    }

    fn start_with(rank: u32, initial: u32, servers: &str, patience: Duration) -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--ignored", "--exact", "--nocapture", "processes::a_process"]);
        program.env(VARIABLE, format!("{rank} {initial} {servers} {}", patience.as_millis()));
        program.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let (err, said) = (child.stderr.take().unwrap(), Arc::new(Mutex::<Vec<String>>::default()));
        thread::spawn({
            let said = Arc::clone(&said);
            move || {
                let lines = BufReader::new(err).lines().map_while(Result::ok);
                lines.for_each(|line| said.lock().unwrap().push(line));
            }
        });
        Self { rank, child, said }
    }

    fn last(&self) -> Option<String> {
        self.said.lock().unwrap().last().cloned()
    }

    /// The servers that it knows.
    fn servers(&self) -> String {
        let last = self.last().unwrap();
        last.split(' ').nth(1).unwrap().to_owned()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a plain system call on a child that has not been reaped.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until these processes run complete steps with exactly each other, and all know the same servers: at least
/// three of their own if there are so many. Then the run can lose any of them.
fn until_all_serve(processes: &mut [&mut Process]) {
    let members: Mask = processes.iter().map(|process| process.rank).collect();
    let began = Instant::now();
    loop {
        let said: Vec<_> = processes.iter().map(|process| process.last().unwrap_or_default()).collect();
        let words: Vec<Vec<&str>> = said.iter().map(|said| said.split(' ').collect()).collect();
        let listen: Vec<&str> = words.iter().filter_map(|words| words.get(2).copied()).collect();
        let whole = |words: &Vec<&str>| match words[..] {
            [ran, servers, _] => {
                let lives = servers.split(',').all(|server| listen.contains(&server));
                let enough = servers.split(',').count() >= 3;
                ran == members.to_string() && (listen[0].is_empty() || lives && enough)
            }
            _ => false,
        };
        if words.iter().all(whole) && words.iter().all(|of| of[1] == words[0][1]) {
            return;
        }
        let ended: Vec<u32> =
            processes.iter_mut().filter_map(|it| (!it.is_running()).then_some(it.rank)).collect();
        assert!(ended.is_empty(), "ranks {ended:?} have ended: {said:?}");
        assert!(began.elapsed() < PATIENT, "{members} do not serve together: {said:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_loop_outlives_a_kill_a_fence_an_eviction_and_the_member_that_serves() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let [mut zero, mut one, mut two, mut three] = [0, 1, 2, 3].map(|rank| Process::start(rank, &address));
    until_all_serve(&mut [&mut zero, &mut one, &mut two, &mut three]);

    // A stopped process fences its rank: its replacement waits for its end.
    three.signal(libc::SIGSTOP);
    let mut another = Process::start(3, &one.servers());
    until_all_serve(&mut [&mut zero, &mut one, &mut two]);
    assert!(another.is_running() && another.last().is_none(), "{:?}", another.last());
    three.kill();
    let mut three = another;
    until_all_serve(&mut [&mut zero, &mut one, &mut two, &mut three]);

    // A rank that was only stopped comes back by itself, in the same process.
    two.signal(libc::SIGSTOP);
    until_all_serve(&mut [&mut zero, &mut one, &mut three]);
    two.signal(libc::SIGCONT);
    until_all_serve(&mut [&mut zero, &mut one, &mut two, &mut three]);

    // The first server of the run ends, and a newcomer asks the remaining ones.
    zero.kill();
    until_all_serve(&mut [&mut one, &mut two, &mut three]);
    let mut zero = Process::start(0, &one.servers());
    until_all_serve(&mut [&mut zero, &mut one, &mut two, &mut three]);

    // A newcomer whose calls end before a stopped member's lease retries.
    three.kill();
    until_all_serve(&mut [&mut zero, &mut one, &mut two]);
    two.signal(libc::SIGSTOP);
    let mut three = Process::start_with(3, RANKS, &one.servers(), IMPATIENT);
    until_all_serve(&mut [&mut zero, &mut one, &mut three]);
    two.signal(libc::SIGCONT);
    let mut all = [zero, one, two, three];
    until_all_serve(&mut all.each_mut());

    for process in &mut all {
        drop(process.child.stdin.take());
    }
    let ends =
        all.each_mut().map(|process| (process.child.wait().unwrap(), process.last().unwrap_or_default()));
    // If the impatient process serves the run by now, it does not wait longer for the others to leave than for anything
    // else, and the ranks that it leaves behind cannot be told that they have left.
    let deserted = !ends[3].0.success();
    for (rank, (status, last)) in ends.iter().enumerate() {
        let excused = deserted && (rank == 3 || last.starts_with("leave: "));
        assert!(status.success() || excused, "rank {rank} ends with {status}: {last:?}; all: {ends:?}");
    }
}

#[test]
fn a_replacement_takes_a_spare_place_while_a_stopped_process_fences_its_own() {
    let options = ServerOptions::new("run", RANKS).heartbeat(heartbeat()).initial(3);
    let server = Server::bind_blocking("127.0.0.1:0", options).unwrap();
    let address = server.local_addr().to_string();
    let start = |rank| Process::start_with(rank, 3, &address, PATIENT);
    let [mut zero, mut one, mut two] = [0, 1, 2].map(start);
    until_all_serve(&mut [&mut zero, &mut one, &mut two]);

    two.signal(libc::SIGSTOP);
    let (mut fenced, mut spare) = (start(2), start(3));
    until_all_serve(&mut [&mut zero, &mut one, &mut spare]);
    assert!(fenced.is_running() && fenced.last().is_none(), "{:?}", fenced.last());
    drop(fenced);
    two.signal(libc::SIGCONT);
    until_all_serve(&mut [&mut zero, &mut one, &mut two, &mut spare]);
}
