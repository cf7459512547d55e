//! A rank's place is refused to another buffer, also of the same process, while a former one may still write there: a
//! row that somebody borrows does not change.

use epwire::{Error, Mask};

use crate::{PATIENT, pair, unconnected};

#[test]
fn a_second_buffer_of_a_rank_is_refused_while_the_first_lives() {
    let [peer, former] = pair(PATIENT);
    peer.set_active(&[0].into_iter().collect(), 2, 0).unwrap();
    let latter = unconnected(1, PATIENT);
    let error = latter.connect_blocking(0, &peer.export(1).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Fenced(_)), "{error}");
    drop(former);
    latter.connect_blocking(0, &peer.export(1).unwrap()).unwrap();
    peer.connect_blocking(1, &latter.export(0).unwrap()).unwrap();
    for buffer in [&peer, &latter] {
        buffer.set_active(&Mask::all(2), 3, 0).unwrap();
    }
}
