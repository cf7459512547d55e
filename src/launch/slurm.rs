//! The two small languages in Slurm's variables: node lists and tasks per node.

/// The first host of a node list such as `n[01-04,7],m3`, here `n01`. Several brackets in one name are allowed
/// (`r[1-2]n[0-3]`). `None` if the text is not a node list.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(at) = rest.find(['[', ',', ']']) {
        host.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b',' => {
                rest = "";
            }
            b'[' => {
                let (inside, after) = rest[at + 1..].split_once(']')?;
                host.push_str(first_number(inside)?);
                rest = after;
            }
            _ => return None,
        }
    }
    host.push_str(rest);
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (!host.is_empty() && host.bytes().all(name)).then_some(host)
}

/// The first number of `01-04,7`, with its leading zeros.
fn first_number(ranges: &str) -> Option<&str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let valid = |range: &str| match range.split_once('-') {
        Some((low, high)) => digits(low) && digits(high),
        None => digits(range),
    };
    if !ranges.split(',').all(valid) {
        return None;
    }
    ranges.split([',', '-']).next()
}

/// Tasks on node number `node` (from 0, in the order of the node list), from a text such as `4(x2),1`. Without a node
/// number the answer is known only if all nodes have the same number. `None` if it is unknown or the text does not have
/// this form.
pub(super) fn tasks_on_node(text: &str, node: Option<u32>) -> Option<u32> {
    let mut first = None;
    let mut wanted = None;
    let mut next_node = 0u32;
    for part in text.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1u32),
        };
        let tasks: u32 = tasks.parse().ok()?;
        let end = next_node.checked_add(nodes)?;
        match node {
            Some(node) if (next_node..end).contains(&node) => wanted = Some(tasks),
            Some(_) => {}
            None if first.is_some_and(|first| first != tasks) => return None,
            None => wanted = Some(tasks),
        }
        first = Some(tasks);
        next_node = end;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_keeps_its_zeros() {
        for (list, host) in [
            ("n[01-04,7],m3", "n01"),
            ("m3,n[01-04]", "m3"),
            ("node7", "node7"),
            ("r[1-2]n[003,5]-ib,x", "r1n003-ib"),
            ("gpu-a.cluster,gpu-b", "gpu-a.cluster"),
            ("[10-12]", "10"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
    }

    #[test]
    fn what_is_no_node_list_is_refused() {
        for list in ["", ",a", "n[1-2", "n1]", "n[]", "n[a-b]", "n[1-]", "n[1,,2]", "n[1[2]]", "a b", "n[-3]"]
        {
            assert_eq!(first_host(list), None, "{list:?}");
        }
    }

    #[test]
    fn tasks_per_node_repeat_and_differ() {
        let of = |node| tasks_on_node("4(x2),1,3(x3)", Some(node));
        assert_eq!(
            (0..7).map(of).collect::<Vec<_>>(),
            [4, 4, 1, 3, 3, 3].map(Some).into_iter().chain([None]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn without_a_node_number_equal_counts_are_enough() {
        assert_eq!(tasks_on_node("8(x4)", None), Some(8));
        assert_eq!(tasks_on_node("8,8(x3)", None), Some(8));
        assert_eq!(tasks_on_node("8(x3),4", None), None);
    }

    #[test]
    fn what_is_no_count_is_refused() {
        for text in ["", "4(x2", "4x2", "a", "4,", "-1", "4(x)", "1(x4294967295),1(x2)"] {
            assert_eq!(tasks_on_node(text, Some(0)), None, "{text:?}");
        }
    }
}
