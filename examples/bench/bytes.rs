//! `--bytes`: the sizes of a collective's buffers.

use std::str::FromStr;

/// Sizes in bytes: `8:256M:x4` begins with 8 and multiplies by 4 up to at most 256 MiB; `1K:4K:+1K` adds; `64K` is one
/// size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u64>);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (first, last, step) = match parts[..] {
            [one] => return Ok(Self(vec![number(one)?])),
            [first, last] => (number(first)?, number(last)?, "x2"),
            [first, last, step] => (number(first)?, number(last)?, step),
            _ => return Err(format!("`{text}`: at most FIRST:LAST:STEP")),
        };
        let next: Box<dyn Fn(u64) -> Option<u64>> = match step.split_at_checked(1) {
            Some(("x", by)) if number(by)? > 1 => {
                let by = number(by)?;
                Box::new(move |size: u64| size.checked_mul(by))
            }
            Some(("+", by)) if number(by)? > 0 => {
                let by = number(by)?;
                Box::new(move |size: u64| size.checked_add(by))
            }
            _ => return Err(format!("`{step}`: a step is x2 or more, or +1 or more")),
        };
        let sizes: Vec<u64> =
            std::iter::successors(Some(first), |size| next(*size)).take_while(|size| *size <= last).collect();
        match sizes.len() {
            0 => Err(format!("`{text}`: the first is above the last")),
            1..=1000 if first > 0 || sizes.len() == 1 => Ok(Self(sizes)),
            _ => Err(format!("`{text}`: more than 1000 sizes")),
        }
    }
}

/// With K, M or G for powers of 1024.
fn number(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is not a number of bytes, such as 8, 64K or 256M"))?;
    number.checked_mul(unit).ok_or_else(|| format!("`{text}` is too large"))
}

/// As it is written on the command line, if that is shorter.
pub fn words(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_nccl_tests_have_them() {
        let sizes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(sizes("8:128:x4"), Ok(vec![8, 32, 128]));
        assert_eq!(sizes("1K:4K"), Ok(vec![1024, 2048, 4096]));
        assert_eq!(sizes("1:3:+1"), Ok(vec![1, 2, 3]));
        assert_eq!(sizes("1M"), Ok(vec![1 << 20]));
        for wrong in ["", "x", "8:4", "8:16:x1", "8:16:+0", "1:2:3:4", "8:16:4", "99999999999G"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
        assert_eq!([words(1 << 20), words(1536), words(8)], ["1M", "1536", "8"]);
    }
}
