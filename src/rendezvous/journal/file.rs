//! The log of a server that stands alone: a file from which the next process continues where this one has ended.
//!
//! The file is {magic | version u16} followed by pieces (see [`frame`](super::frame)): first the time and a snapshot of
//! the machine, then the records that followed it, each piece holding a group of them. `FILE.new` replaces the file
//! when the records outweigh the snapshot; `FILE.lock` is locked while a server uses the two, and is never removed.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::frame::{Piece, frame, read};
use crate::rendezvous::codec::{Reader, Wire, WireError};
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::machine::Machine;
use crate::rendezvous::record::Record;

/// The open log of a machine.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    file: File,
    /// Bytes of it that are on disk: the next piece goes there.
    length: u64,
    /// Bytes of it that are not records.
    base: u64,
    /// Length before which it is not compacted: the last try has failed.
    not_before: u64,
    /// Time of the last record.
    last: Duration,
    /// The contents of the disk are uncertain after an error: nothing more may be promised.
    broken: bool,
    _lock: File,
}

impl StateFile {
    /// Opens the log at `path`. Returns it with the machine that its records lead to and the time of its last record;
    /// if there is no file, a new one that begins with a `fresh` machine at time 0. What a dead process or host has
    /// half written is cut off: nobody was told that it was on disk.
    ///
    /// Errors: [`BootstrapError::System`] if another server uses the file, if it is damaged, of another version or not
    /// a file of epwire, or if the system reports an error.
    pub(crate) fn open(
        path: &Path,
        fresh: impl FnOnce() -> Result<Machine, BootstrapError>,
    ) -> Result<(Self, Machine, Duration), BootstrapError> {
        let path = resolve(path).map_err(|error| refusal(OPEN, path, &error))?;
        let said = |error: io::Error| refusal(OPEN, &path, &error);
        let lock = lock(&path)?;
        remove(&beside(&path, NEW)).map_err(said)?; // left over by a process that died before renaming it
        // A pipe in its place is refused, without waiting for a writer.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let (file, told) = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (machine, last) = (fresh()?, Duration::ZERO);
                let (file, length) = write_beside(&path, &machine, last).map_err(said)?;
                fs::rename(beside(&path, NEW), &path).map_err(said)?;
                (file, Told { machine, last, base: length, length })
            }
            file => {
                let file = file.map_err(said)?;
                let told = replay(&file, &path)?;
                // What was read counts from now on, even if nobody has made sure that it reached the disk.
                file.set_len(told.length).and_then(|()| file.sync_all()).map_err(said)?;
                (file, told)
            }
        };
        sync_folder(&path).map_err(said)?;
        let Told { machine, last, base, length } = told;
        let file = Self { path, file, length, base, not_before: 0, last, broken: false, _lock: lock };
        Ok((file, machine, last))
    }

    /// Adds records, whose times do not decrease. They are on disk when this returns, with a single sync unless they
    /// are large.
    ///
    /// Errors: [`BootstrapError::System`], and from then on always: the contents of the disk are uncertain, so the
    /// server has to end.
    pub(crate) fn append(&mut self, records: &[Record]) -> Result<(), BootstrapError> {
        self.usable()?;
        let mut body = Vec::new();
        for record in records {
            if record.at < self.last {
                return Err(self.breaks(&BACKWARDS));
            }
            self.last = record.at;
            record.put(&mut body);
            if body.len() >= PIECE_BYTES {
                self.add(&std::mem::take(&mut body))?;
            }
        }
        if body.is_empty() { Ok(()) } else { self.add(&body) }
    }

    /// Replaces the records by a snapshot of the machine that they led to, if there are many of them. `now`: its time.
    ///
    /// Errors: [`BootstrapError::System`]. Unless appending fails as well, nothing has changed then.
    pub(crate) fn compact(&mut self, machine: &Machine, now: Duration) -> Result<(), BootstrapError> {
        if self.length < LEAST_BYTES.max(self.base.saturating_mul(GROWTH)).max(self.not_before) {
            return Ok(());
        }
        // After a failure, of a full disk for example, only once the file has grown again by half.
        self.not_before = self.length.saturating_add(self.length / 2);
        self.rewrite(machine, now)
    }

    fn rewrite(&mut self, machine: &Machine, now: Duration) -> Result<(), BootstrapError> {
        self.usable()?;
        let last = self.last.max(now);
        let written = write_beside(&self.path, machine, last).and_then(|written| {
            fs::rename(beside(&self.path, NEW), &self.path)?;
            Ok(written)
        });
        match written {
            Ok((file, length)) => {
                (self.file, self.length, self.base, self.last) = (file, length, length, last);
                self.not_before = 0;
            }
            Err(error) => {
                let _ = remove(&beside(&self.path, NEW)); // records need the space that it takes
                return Err(refusal(KEEP, &self.path, &error));
            }
        }
        // Until the new name is on disk, records in the new file may be lost together with it.
        sync_folder(&self.path).map_err(|error| self.breaks(&error))
    }

    /// Adds one piece.
    fn add(&mut self, body: &[u8]) -> Result<(), BootstrapError> {
        let piece = frame(self.length, body);
        let written = self.file.write_all_at(&piece, self.length).and_then(|()| self.file.sync_data());
        written.map_err(|error| self.breaks(&error))?;
        self.length += piece.len() as u64;
        Ok(())
    }

    fn usable(&self) -> Result<(), BootstrapError> {
        let reason =
            "writing failed before, so what is on disk is not known; end the server and start it again";
        if self.broken { Err(refusal(KEEP, &self.path, &reason)) } else { Ok(()) }
    }

    fn breaks(&mut self, reason: &dyn Display) -> BootstrapError {
        self.broken = true;
        refusal(KEEP, &self.path, reason)
    }
}

/// The contents of a file, up to the last whole piece.
struct Told {
    machine: Machine,
    last: Duration,
    /// Offset at which the records begin.
    base: u64,
    length: u64,
}

/// Restores the machine and replays the records. Its actions are ignored: they were carried out when the records were
/// made.
fn replay(file: &File, path: &Path) -> Result<Told, BootstrapError> {
    let said = |error: io::Error| refusal(OPEN, path, &error);
    let end = file.metadata().map_err(said)?.len();
    let mut from = BufReader::new(file);
    read_header(&mut from).map_err(said)?.map_err(|reason| refusal(OPEN, path, &reason))?;
    let damaged = |at: u64, what: &dyn Display| {
        let remedy = "put a copy of the file in its place, or move it away to begin a new run";
        refusal(OPEN, path, &format_args!("damaged at byte {at}: {what}; {remedy}"))
    };
    let first = HEADER_BYTES as u64;
    let Piece::Whole { body, next: base } = read(&mut from, first, end).map_err(said)? else {
        return Err(damaged(first, &"the snapshot is not as it was written"));
    };
    let (mut last, mut machine) = read_snapshot(&body).map_err(|error| {
        let remedy = "start the epwire that wrote it, or move the file away to begin a new run";
        refusal(OPEN, path, &format_args!("its snapshot: {error}; {remedy}"))
    })?;
    let mut length = base;
    loop {
        match read(&mut from, length, end).map_err(said)? {
            Piece::Whole { body, next } => {
                let mut records = Reader::new(&body);
                while records.remaining() > 0 {
                    let Record { at, event } =
                        Record::get(&mut records).map_err(|error| damaged(length, &error))?;
                    if at < last {
                        return Err(damaged(length, &BACKWARDS));
                    }
                    last = at;
                    machine.handle(at, event);
                }
                length = next;
            }
            Piece::Last => return Ok(Told { machine, last, base, length }),
            Piece::Damaged => return Err(damaged(length, &"a record is not as it was written")),
        }
    }
}

/// Whether a file is of this kind and version, otherwise what it is instead.
fn read_header(from: &mut impl Read) -> io::Result<Result<(), String>> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    from.take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    let Some((MAGIC, version)) = header.split_first_chunk() else {
        return Ok(Err("this is not a state file of a rendezvous server; name another".to_owned()));
    };
    Ok(match <[u8; 2]>::try_from(version).map(u16::from_le_bytes) {
        Ok(VERSION) => Ok(()),
        Ok(theirs) => Err(format!(
            "a state file of version {theirs} (this side: {VERSION}); start the epwire that wrote it, or move it away"
        )),
        Err(_) => Err("a state file that ends early; move it away to begin a new run".to_owned()),
    })
}

fn read_snapshot(body: &[u8]) -> Result<(Duration, Machine), WireError> {
    let mut from = Reader::new(body);
    let at = Duration::get(&mut from)?;
    Machine::restore(from.rest()).map(|machine| (at, machine))
}

/// Writes `FILE.new` to disk, with a machine and no records; returns it and its length.
fn write_beside(path: &Path, machine: &Machine, now: Duration) -> io::Result<(File, u64)> {
    let new = beside(path, NEW);
    remove(&new)?;
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(&new)?;
    let mut body = Vec::new();
    now.put(&mut body);
    body.extend_from_slice(&machine.snapshot());
    let bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &frame(HEADER_BYTES as u64, &body)].concat();
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    Ok((file, bytes.len() as u64))
}

/// Makes the names in the file's folder durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Keeps other servers away until it is dropped. It is a separate file, because the other one is replaced from time to
/// time.
fn lock(path: &Path) -> Result<File, BootstrapError> {
    let said = |error: io::Error| refusal(OPEN, path, &error);
    let name = beside(path, ".lock");
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(name).map_err(said)?;
    // SAFETY: no memory is passed, and the descriptor belongs to a file that is open here.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock => Err(refusal(
            OPEN,
            path,
            &"another server uses this file; end that one first, or name another file",
        )),
        _ => Err(said(error)),
    }
}

/// The path of the file itself, after following links, so that two servers use the same lock.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        found => found,
    }
}

/// The path of the file with another suffix.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn refusal(op: &str, path: &Path, reason: &dyn Display) -> BootstrapError {
    BootstrapError::System { op: op.to_owned(), detail: format!("{}: {reason}", path.display()) }
}

const OPEN: &str = "open the state file";
const KEEP: &str = "keep the state";
const BACKWARDS: &str = "a record from before the last one";
const MAGIC: &[u8; 8] = b"EPWstate";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = MAGIC.len() + 2;
/// Suffix of the file that replaces the other.
const NEW: &str = ".new";
const MODE: u32 = 0o600;
/// Approximate limit for the size of a piece.
const PIECE_BYTES: usize = 16 << 20;
/// A file is not rewritten until it has this many bytes, and this many times those of its snapshot.
const LEAST_BYTES: u64 = 16 << 20;
const GROWTH: u64 = 4;

#[cfg(test)]
mod tests;
