//! The core's log: lines that the crate adds to it, and its records as `tracing` events.

use std::ffi::CString;
#[cfg(feature = "tracing")]
use std::ffi::c_char;

use crate::sys;

/// The subsystem, numbered as in `c/base/log.h`. The crate only logs about memberships and the processes that
/// take part in them.
const MEMBER: u32 = 2;

/// The importance of a line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Level {
    Warn = 1,
    Info = 2,
    Trace = 3,
}

/// Adds a line to the log that `EPWIRE_LOG` turns on; makes the text only if that wants the line. A launcher's lines
/// have no rank.
pub(crate) fn line(level: Level, rank: impl Into<Option<u32>>, text: impl FnOnce() -> String) {
    // SAFETY: any thread may call it, with any numbers.
    if !unsafe { sys::epw_log_listens(MEMBER, level as u32) } {
        return;
    }
    let Ok(text) = CString::new(text()) else { return };
    let rank = rank.into().unwrap_or(u32::MAX); // -1 in the core, which is no rank
    // SAFETY: the text is valid for the call.
    unsafe { sys::epw_log_line(MEMBER, level as u32, rank, text.as_ptr()) };
}

/// Passes the core's records to `tracing`, at the levels that the current subscriber wants.
#[cfg(feature = "tracing")]
pub(crate) fn route_to_tracing() {
    use tracing::level_filters::LevelFilter;
    let levels = match LevelFilter::current() {
        LevelFilter::OFF => c"off",
        LevelFilter::ERROR | LevelFilter::WARN => c"warn",
        LevelFilter::INFO | LevelFilter::DEBUG => c"info",
        _ => c"trace",
    };
    // SAFETY: the function takes no context, and may be called at any time by any thread.
    let status = unsafe { sys::epw_log_set(levels.as_ptr(), Some(speak), std::ptr::null_mut()) };
    debug_assert_eq!(status, sys::EPW_OK);
}

#[cfg(feature = "tracing")]
unsafe extern "C" fn speak(_: *mut std::ffi::c_void, record: *const sys::epw_log_record) {
    // SAFETY: the core's record is valid for the call, its texts are NUL-terminated.
    let (record, subsystem, text) = unsafe {
        let record = &*record;
        (record, text(record.subsystem), text(record.text))
    };
    let (subsystem, text) = (&*subsystem, &*text);
    let known = |rank: i32| u32::try_from(rank).ok();
    let (rank, peer) = (known(record.rank), known(record.peer));
    macro_rules! event {
        ($level:ident) => {
            tracing::event!(target: "epwire::core", tracing::Level::$level, rank, peer, subsystem, "{text}")
        };
    }
    // A subscriber that panics must not unwind into C.
    crate::waking::contain(|| match record.level {
        sys::EPW_LOG_WARN => event!(WARN),
        sys::EPW_LOG_INFO => event!(INFO),
        _ => event!(TRACE),
    });
}

/// # Safety
/// The text ends in a zero and is valid for `'a`.
#[cfg(feature = "tracing")]
unsafe fn text<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    // SAFETY: as the caller promises.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy()
}

#[cfg(feature = "tracing")]
#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};

    /// The events that it gets, as `LEVEL field=value ...`.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<String>>>);

    struct Words(String);

    impl Visit for Words {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0 += &format!(" {field}={value:?}");
        }
    }

    impl tracing::Subscriber for Seen {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == "epwire::core"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut words = Words(event.metadata().level().to_string());
            event.record(&mut words);
            self.0.lock().unwrap().push(words.0);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// Panics at each event, with a payload that panics when it is dropped.
    struct Panics;

    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("the payload is dropped");
        }
    }

    impl tracing::Subscriber for Panics {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == "epwire::core"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            std::panic::panic_any(Payload);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn the_core_outlives_a_subscriber_that_panics() {
        tracing::subscriber::with_default(Panics, || {
            super::route_to_tracing();
            crate::ffi::probe_fake_adapter(BF_UAR_ALONE, None);
        });
    }

    /// Of an adapter without doorbell registers of the best kind.
    const BF_UAR_ALONE: u64 = 1 << 7;

    #[test]
    fn what_an_adapter_does_without_is_an_event() {
        let seen = Seen::default();
        tracing::subscriber::with_default(seen.clone(), || {
            super::route_to_tracing();
            crate::ffi::probe_fake_adapter(BF_UAR_ALONE, None);
        });
        let events = seen.0.lock().unwrap();
        let said: Vec<_> = events.iter().filter(|event| event.contains("doorbell register")).collect();
        assert_eq!(
            said,
            [
                "WARN message=fake_0: two doorbell registers share a page (errno 95): install rdma-core 45 or newer, \
                 and a newer kernel subsystem=\"nic\""
            ],
            "{events:?}"
        );
    }
}
