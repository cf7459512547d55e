//! Files that are whole, torn at any byte, changed at any byte, or left behind while they were being replaced.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::rendezvous::codec::Blob;
use crate::rendezvous::machine::{Call, Event, Settings};
use crate::rendezvous::wire::Request;

const SECOND: Duration = Duration::from_secs(1);

/// A folder for one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("epwire-state-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn machine() -> Machine {
    let settings = Settings {
        run_id: "run".to_owned(),
        world: 1,
        initial: 1,
        join_deadline: 60 * SECOND,
        lease: 5 * SECOND,
        arbiter: false,
    };
    Machine::new(settings).unwrap()
}

/// Sets a key to the record's number.
fn record(number: u8) -> Record {
    let request = Request::Set { key: "n".to_owned(), value: Blob(vec![number]) };
    let call = Call { session: 1, id: u64::from(number) };
    Record { at: SECOND * u32::from(number), event: Event::Request { call, request: Box::new(request) } }
}

fn records(numbers: std::ops::RangeInclusive<u8>) -> Vec<Record> {
    numbers.map(record).collect()
}

/// The machine and the time after each number of records, up to this one.
fn ways(count: u8) -> Vec<(Vec<u8>, Duration)> {
    let mut machine = machine();
    let mut ways = vec![(machine.snapshot(), Duration::ZERO)];
    for Record { at, event } in records(1..=count) {
        machine.handle(at, event);
        ways.push((machine.snapshot(), at));
    }
    ways
}

/// Opens a log that exists.
fn open(path: &Path) -> Result<(StateFile, Machine, Duration), BootstrapError> {
    StateFile::open(path, || panic!("{} is gone", path.display()))
}

/// The number of records that a log leads to, recognised by machine and time.
fn count(path: &Path, ways: &[(Vec<u8>, Duration)]) -> Result<usize, BootstrapError> {
    let (_, machine, last) = open(path)?;
    let found = (machine.snapshot(), last);
    Ok(ways.iter().position(|way| *way == found).expect("records that nobody has written"))
}

/// A log of five records in three groups, and where each group ends.
fn small(folder: &Folder) -> (Vec<u8>, Vec<(u64, usize)>) {
    let (mut file, ..) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    let mut ends = vec![(file.length, 0)];
    for group in [1..=1, 2..=4, 5..=5] {
        let last = usize::from(*group.end());
        file.append(&records(group)).unwrap();
        ends.push((file.length, last));
    }
    (fs::read(folder.state()).unwrap(), ends)
}

#[test]
fn what_was_appended_is_there_in_the_next_process() {
    let (folder, ways) = (Folder::new(), ways(9));
    let (mut file, fresh, last) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    assert_eq!((fresh.snapshot(), last), ways[0]);
    file.append(&records(1..=4)).unwrap();
    file.append(&[]).unwrap();
    drop(file);
    let (mut file, machine, last) = open(&folder.state()).unwrap();
    assert_eq!((machine.snapshot(), last), ways[4]);
    file.append(&records(5..=9)).unwrap();
    drop(file);
    assert_eq!(count(&folder.state(), &ways).unwrap(), 9);
    assert_eq!(folder.names(), ["state", "state.lock"]);
    for name in folder.names() {
        let mode = fs::metadata(folder.0.join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_file_cut_anywhere_leads_to_the_groups_before() {
    let (folder, ways) = (Folder::new(), ways(6));
    let (bytes, ends) = small(&folder);
    for cut in 0..bytes.len() {
        fs::write(folder.state(), &bytes[..cut]).unwrap();
        let whole = ends.iter().rfind(|(end, _)| *end <= cut as u64);
        match (open(&folder.state()), whole) {
            (Ok((mut file, machine, last)), Some((end, records))) => {
                assert_eq!((machine.snapshot(), last), ways[*records], "cut at {cut}");
                assert_eq!(fs::metadata(folder.state()).unwrap().len(), *end);
                // New records go where the torn group was.
                file.append(&[Record { at: last, ..record(6) }]).unwrap();
                drop(file);
                let (_, machine, _) = open(&folder.state()).unwrap();
                assert_ne!(machine.snapshot(), ways[*records].0);
            }
            (Err(BootstrapError::System { detail, .. }), None) => {
                assert!(detail.starts_with(folder.state().to_str().unwrap()), "{detail}");
            }
            (found, whole) => panic!("cut at {cut}: {found:?} with {whole:?} whole"),
        }
    }
}

#[test]
fn a_byte_changed_anywhere_is_an_error_or_the_end() {
    let (folder, ways) = (Folder::new(), ways(5));
    let (bytes, ends) = small(&folder);
    let last_group = ends[2];
    for at in 0..bytes.len() {
        for bits in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= bits;
            fs::write(folder.state(), &changed).unwrap();
            match count(&folder.state(), &ways) {
                Ok(records) => assert_eq!((records, at as u64 >= last_group.0), (last_group.1, true), "{at}"),
                Err(BootstrapError::System { op, detail }) => {
                    assert_eq!(op, "open the state file");
                    assert!(detail.starts_with(folder.state().to_str().unwrap()), "{detail}");
                    let left = fs::read(folder.state()).unwrap();
                    assert!(left == changed, "a damaged file is left as it is");
                }
                Err(other) => panic!("{at}: {other}"),
            }
        }
    }
}

#[test]
fn a_tail_of_zeros_is_cut_off() {
    let (folder, ways) = (Folder::new(), ways(5));
    let (mut bytes, ends) = small(&folder);
    bytes.extend([0; 5000]);
    fs::write(folder.state(), &bytes).unwrap();
    assert_eq!(count(&folder.state(), &ways).unwrap(), 5);
    assert_eq!(fs::metadata(folder.state()).unwrap().len(), ends[3].0);
}

#[test]
fn what_is_no_state_file_of_this_version_is_left_alone_and_named() {
    let folder = Folder::new();
    let (mut bytes, _) = small(&folder);
    bytes[8] = 9;
    for (content, what) in [
        (&b""[..], "this is not a state file of a rendezvous server"),
        (b"token\n", "this is not a state file of a rendezvous server"),
        (&b"x".repeat(5000), "this is not a state file of a rendezvous server"),
        (&bytes[..9], "a state file that ends early"),
        (&bytes, "a state file of version 9 (this side: 1)"),
    ] {
        fs::write(folder.state(), content).unwrap();
        let error = open(&folder.state()).unwrap_err().to_string();
        let start = format!("open the state file: {}: {what}; ", folder.state().display());
        assert!(error.starts_with(&start), "{error}");
        assert_eq!(fs::read(folder.state()).unwrap(), content);
    }
    fs::remove_file(folder.state()).unwrap();
    fs::create_dir(folder.state()).unwrap();
    assert!(open(&folder.state()).unwrap_err().to_string().contains("Is a directory"));
}

#[test]
fn a_snapshot_of_another_version_names_the_file() {
    let folder = Folder::new();
    let (mut bytes, ends) = small(&folder);
    bytes.truncate(ends[0].0 as usize);
    let mut body = bytes[HEADER_BYTES + 24..].to_vec();
    body[8] += 1; // after the time
    bytes.truncate(HEADER_BYTES);
    bytes.extend(frame(HEADER_BYTES as u64, &body));
    fs::write(folder.state(), &bytes).unwrap();
    let error = open(&folder.state()).unwrap_err().to_string();
    assert!(error.contains("state: its snapshot: bytes of version 13 (this side: 12); "), "{error}");
}

#[test]
fn a_second_server_is_refused_while_the_first_one_lives() {
    let folder = Folder::new();
    let (mut file, machine, last) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(folder.state(), &link).unwrap();
    for path in [folder.state(), link] {
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("another server uses this file"), "{error}");
    }
    file.rewrite(&machine, last).unwrap();
    assert!(open(&folder.state()).is_err(), "the file that took its place is locked as well");
    drop(file);
    open(&folder.state()).unwrap();
}

#[test]
fn a_file_written_anew_in_between_leads_to_the_same() {
    let (folder, ways) = (Folder::new(), ways(9));
    let (mut file, mut machine, _) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    for number in 1..=9 {
        let Record { at, event } = record(number);
        file.append(&[record(number)]).unwrap();
        machine.handle(at, event);
        if number % 3 == 0 {
            let former = file.length;
            file.rewrite(&machine, at).unwrap();
            assert!(file.length < former);
        }
        // As found by a process that starts after this one died here.
        let copy = Folder::new();
        fs::copy(folder.state(), copy.state()).unwrap();
        assert_eq!(count(&copy.state(), &ways).unwrap(), usize::from(number));
    }
    assert_eq!(folder.names(), ["state", "state.lock"]);
}

#[test]
fn a_process_that_dies_while_it_writes_the_file_anew_leaves_the_former_one() {
    let (folder, ways) = (Folder::new(), ways(6));
    small(&folder);
    let new = beside(&folder.state(), NEW);
    let (_, machine, last) = open(&folder.state()).unwrap();
    write_beside(&folder.state(), &machine, last).unwrap();
    let whole = fs::read(&new).unwrap();
    for cut in (0..=whole.len()).step_by(7) {
        fs::write(&new, &whole[..cut]).unwrap();
        let (mut file, machine, found) = open(&folder.state()).unwrap();
        assert_eq!((machine.snapshot(), found), ways[5]);
        assert!(!new.exists());
        // The replacement may also have begun since then.
        fs::write(&new, &whole[..cut]).unwrap();
        file.rewrite(&machine, found).unwrap();
        assert_eq!(folder.names(), ["state", "state.lock"]);
    }
    let (mut file, ..) = open(&folder.state()).unwrap();
    file.append(&[record(6)]).unwrap();
    drop(file);
    assert_eq!(count(&folder.state(), &ways).unwrap(), 6);
}

#[test]
fn a_file_is_written_anew_once_it_has_grown() {
    let folder = Folder::new();
    let (mut file, mut machine, _) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    let group: Vec<Record> = (0..64)
        .map(|number| {
            let value = Blob(vec![number; 64 << 10]);
            let request = Box::new(Request::Set { key: "n".to_owned(), value });
            let call = Call { session: 1, id: u64::from(number) };
            Record { at: SECOND, event: Event::Request { call, request } }
        })
        .collect();
    for Record { at, event } in group.clone() {
        machine.handle(at, event);
    }
    let mut most = 0;
    let mut shrank = 0;
    for _ in 0..10 {
        let former = file.length;
        file.append(&group).unwrap();
        most = most.max(file.length);
        file.compact(&machine, SECOND).unwrap();
        shrank += u32::from(file.length < former);
    }
    assert!(shrank == 2 && most < LEAST_BYTES + (5 << 20), "{shrank} {most}");
    drop(file);
    let (_, restored, last) = open(&folder.state()).unwrap();
    assert_eq!((restored.snapshot(), last), (machine.snapshot(), SECOND));
}

/// As on a full disk, which the records to come must not find full. Runs in a process of its own, all files of which have
/// the limit.
#[test]
fn a_failed_rewrite_leaves_nothing_and_waits_for_growth() {
    const NAME: &str = "a_failed_rewrite_leaves_nothing_and_waits_for_growth";
    if std::env::var_os("FILES_ARE_LIMITED").is_none() {
        let test = format!("{}::{NAME}", module_path!().split_once("::").unwrap().1);
        let mut limited = std::process::Command::new(std::env::current_exe().unwrap());
        let said = limited.args(["--exact", &test]).env("FILES_ARE_LIMITED", "1").output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.contains("1 passed"), "{said:?}");
        return;
    }
    let limit = libc::rlimit { rlim_cur: 1 << 15, rlim_max: 1 << 15 };
    // SAFETY: plain system calls.
    unsafe {
        assert_ne!(libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::SIG_ERR);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    let folder = Folder::new();
    let (mut file, mut machine, _) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    let request = Box::new(Request::Set { key: "n".to_owned(), value: Blob(vec![1; 1 << 16]) });
    machine.handle(SECOND, Event::Request { call: Call { session: 1, id: 1 }, request });
    let written = file.length;
    file.length = LEAST_BYTES; // as if it had grown
    for _ in 0..2 {
        let error = file.compact(&machine, SECOND).unwrap_err().to_string();
        assert!(error.contains("File too large"), "{error}");
        assert_eq!(folder.names(), ["state", "state.lock"]);
        file.length += file.length / 2 - 1;
        file.compact(&machine, SECOND).expect("no attempt is made yet");
        file.length += LEAST_BYTES;
    }
    file.length = written;
    file.append(&[record(1)]).unwrap();
}

#[test]
fn a_group_past_the_size_of_a_piece_becomes_several() {
    let folder = Folder::new();
    let value = Blob(vec![7; 4 << 20]); // more than the store accepts
    let request = Request::Set { key: "n".to_owned(), value };
    let event = Event::Request { call: Call { session: 1, id: 1 }, request: Box::new(request) };
    let (mut file, ..) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    let (before, group) = (file.length, vec![Record { at: SECOND, event }; 6]);
    let bytes: usize = group.iter().map(|record| record.encode().len()).sum();
    file.append(&group).unwrap();
    assert_eq!(file.length - before, bytes as u64 + 2 * 24);
    drop(file);
    assert_eq!(open(&folder.state()).unwrap().2, SECOND);
}

#[test]
fn after_a_write_that_failed_nothing_more_is_promised() {
    let (folder, ways) = (Folder::new(), ways(3));
    let (mut file, ..) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    file.append(&records(1..=3)).unwrap();
    let writable = std::mem::replace(&mut file.file, File::open(folder.state()).unwrap());
    for _ in 0..2 {
        assert!(file.append(&[record(4)]).is_err());
        file.file = writable.try_clone().unwrap();
    }
    assert!(file.rewrite(&machine(), SECOND).is_err());
    drop(file);
    assert_eq!(count(&folder.state(), &ways).unwrap(), 3);
}

#[test]
fn time_that_runs_backwards_is_refused() {
    let (folder, ways) = (Folder::new(), ways(3));
    let (mut file, ..) = StateFile::open(&folder.state(), || Ok(machine())).unwrap();
    file.append(&records(1..=3)).unwrap();
    let error = file.append(&[record(2)]).unwrap_err().to_string();
    assert!(error.ends_with("a record from before the last one"), "{error}");
    drop(file);
    assert_eq!(count(&folder.state(), &ways).unwrap(), 3);
}
