//! Numbers within limits as values of variables: an error names the variable and the allowed values.

use std::ops::RangeInclusive;

/// The number in `text`, the value of the variable `name`.
pub(crate) fn number(name: &str, text: &str, limits: RangeInclusive<u32>) -> Result<u32, String> {
    let found = text.trim().parse().ok().filter(|found| limits.contains(found));
    found.ok_or_else(|| {
        format!("{name}: {text:?} is not a number from {} to {}", limits.start(), limits.end())
    })
}

/// The same for a power of two; `what` describes it.
pub(crate) fn power_of_two(
    name: &str,
    text: &str,
    what: &str,
    limits: RangeInclusive<u32>,
) -> Result<u32, String> {
    let (least, most) = (*limits.start(), *limits.end());
    let found = number(name, text, limits).ok().filter(|found| found.is_power_of_two());
    found.ok_or_else(|| format!("{name}: {text:?} is no {what}: give a power of two from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_have_limits() {
        let depth = |text| power_of_two("DEPTH", text, "depth of a queue", 16..=32768);
        assert_eq!((depth("16"), depth(" 4096 "), depth("32768")), (Ok(16), Ok(4096), Ok(32768)));
        for wrong in ["", "0", "8", "24", "65536", "4294967296", "-16", "4K", "deep"] {
            let text = depth(wrong).unwrap_err();
            let begin = format!("DEPTH: {wrong:?} is no depth of a queue: ");
            assert!(text.starts_with(&begin) && text.ends_with("a power of two from 16 to 32768"), "{text}");
        }
    }

    #[test]
    fn numbers_have_limits() {
        let class = |text| number("CLASS", text, 0..=255);
        assert_eq!(class(" 106 "), Ok(106));
        for wrong in ["", "256", "-1", "0x10", "many"] {
            let text = class(wrong).unwrap_err();
            assert!(text.starts_with("CLASS: ") && text.ends_with("from 0 to 255"), "{text}");
        }
    }
}
