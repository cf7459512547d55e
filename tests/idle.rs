//! Ranks that have nothing to say leave the cores to others. Alone in its process, whose threads it counts.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "succession")]

use std::time::Duration;

use epwire::group::{Group, GroupOptions};

/// How often threads of this name have waited so far, and how many there are.
fn waits(name: &str) -> (u64, u64) {
    let mut found = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let folder = task.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        if read("comm").trim_end() != name {
            continue;
        }
        let status = read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        found.0 += line.map_or(0, |count| count.trim().parse().unwrap());
        found.1 += 1;
    }
    found
}

#[test]
fn servers_of_members_that_do_not_lead_sleep() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let join = |rank: u32| {
        let options = GroupOptions::new(rank, 3, address.clone()).run_id("run").host_server(rank == 0);
        std::thread::spawn(|| Group::join_blocking(options).unwrap())
    };
    let groups: Vec<Group> = [0, 1, 2].map(join).into_iter().map(|joining| joining.join().unwrap()).collect();
    // Longer than a new server looks for members that may have ended before.
    std::thread::sleep(Duration::from_secs(1));
    let (before, servers) = waits("epwire-server");
    std::thread::sleep(Duration::from_secs(1));
    let (after, _) = waits("epwire-server");
    assert_eq!(servers, 3);
    assert!(after - before < 600, "{} wake-ups in a second", after - before);
    drop(groups);
}
