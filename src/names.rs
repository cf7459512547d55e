//! What types of the crate have in common: the names with which they are printed and parsed, setters of public fields,
//! and how errors print for `{:?}`.

use std::fmt;

/// A text that is not the name of any value of a type.
#[derive(Clone, PartialEq, Eq, Hash)]
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

impl fmt::Debug for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ParseNameError {}

/// `Display` and `FromStr` of an enum from one list of names. Further names after `|` are read as well.
macro_rules! names {
    ($type:ident, $expected:literal { $($variant:ident = $name:literal $(| $also:literal)*),+ $(,)? }) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(Self::$variant {} => $name),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::ParseNameError;

            fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
                match text {
                    $($name $(| $also)* => Ok(Self::$variant {}),)+
                    _ => Err($crate::names::ParseNameError::new(text, $expected)),
                }
            }
        }
    };
}

/// A setter for each of these public fields, with the field's name, so that a non-exhaustive struct can be built by
/// chaining. The setter of an `Option<T>` takes a `T`, if it is listed so. Parameters of a generic struct stand in brackets.
macro_rules! setters {
    ($type:ident { $($field:ident: $of:ty),+ $(,)? }) => {
        setters!(impl[] $type[] { $($field: $of),+ });
    };
    (impl[$($parameter:tt)*] $type:ident[$($argument:tt)*] { $($field:ident: $of:ty),+ $(,)? }) => {
        impl<$($parameter)*> $type<$($argument)*> {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($type), "::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $of) -> Self {
                    self.$field = $field.into();
                    self
                }
            )+
        }
    };
}

/// `Debug` of an enum of errors: the variant, then the error's text, which contains all fields. So a `main` that returns
/// the error ends with a sentence. After the semicolon come the variants that wrap another error of this kind.
macro_rules! readable {
    ($type:ident { $($variant:ident),+ $(; $($wrapper:ident),+)? }) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant { .. } => write!(f, "{}: {self}", stringify!($variant)),)+
                    $($(Self::$wrapper(error) => write!(f, "{}: {error:?}", stringify!($wrapper)),)+)?
                }
            }
        }
    };
}

pub(crate) use {names, readable, setters};
