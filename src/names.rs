//! What types of the crate have in common: names that they are printed as and read from, and setters of public fields.

use std::fmt;

/// A text that names none of the values of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseNameError {
    text: String,
    expected: &'static str,
}

impl ParseNameError {
    pub(crate) fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

impl fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.text, self.expected)
    }
}

impl std::error::Error for ParseNameError {}

/// `Display` and `FromStr` of an enum by one list of names.
macro_rules! names {
    ($type:ident, $expected:literal { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(Self::$variant => $name),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::ParseNameError;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::names::ParseNameError::new(text, $expected)),
                }
            }
        }
    };
}

/// A setter for each of these public fields, of the field's name, so that a struct that may grow can be made by chaining.
macro_rules! setters {
    ($type:ident { $($field:ident: $of:ty),+ $(,)? }) => {
        impl $type {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($type), "::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $of) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

pub(crate) use {names, setters};
