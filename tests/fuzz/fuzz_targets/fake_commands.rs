//! Commands to the fake adapter, by the right call and by others: any bytes are executed, or refused as the kernel or
//! the firmware refuses them, and a refused command leaves no object.
#![no_main]

use arbitrary::Arbitrary;
use epwire_fuzz::fake::{ANSWER_BYTES, COMMANDS, Call, Device};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// As the library builds it, with some bits inverted.
    Built {
        command: u8,
        about: u8,
        to: u8,
        turned: Vec<u16>,
        by: Option<u8>,
        room: Option<u16>,
    },
    Bytes {
        by: u8,
        to: u8,
        bytes: &'a [u8],
        room: Option<u16>,
    },
    Ring {
        which: u8,
    },
    Destroy {
        which: u8,
    },
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    infiniband: bool,
    /// Options that only change what is refused.
    no_atomics: bool,
    short_rings: bool,
    steps: Vec<Step<'a>>,
}

const CALLS: [Call; 4] = [Call::Create, Call::Modify, Call::Query, Call::General];
const EINVAL: i32 = 22;
const EREMOTEIO: i32 = 121;

fn call(number: u8) -> Call {
    CALLS[usize::from(number) % CALLS.len()]
}

fn say(device: &mut Device, by: Call, to: u8, bytes: &[u8], room: Option<u16>) {
    let before = device.objects();
    let room = room.map_or(ANSWER_BYTES, |room| usize::from(room) % (ANSWER_BYTES + 1));
    let Some(answered) = device.command(by, to, bytes, room) else { return };
    assert_eq!(device.objects() - before, u32::from(answered.made));
    assert_eq!(answered.made, answered.errno == 0 && by == Call::Create);
    match answered.errno {
        0 => {
            assert_eq!(answered.out[0], 0);
            let opcode = u16::from_be_bytes([bytes[0], bytes[1]]);
            assert!(COMMANDS.contains(&(opcode, by)), "{opcode:x} by {by:?}");
        }
        EREMOTEIO => assert_ne!(answered.out[0], 0),
        EINVAL => assert!(answered.out.iter().all(|byte| *byte == 0xa5)),
        other => panic!("errno {other}"),
    }
}

fuzz_target!(|input: Input| {
    let lacks = u64::from(input.no_atomics) << 11 | u64::from(input.short_rings) << 13;
    let mut device = Device::new(input.infiniband, lacks);
    for step in input.steps.iter().take(40) {
        match step {
            Step::Built { command, about, to, turned, by, room } => {
                let mut bytes = device.build(*command, *about, input.infiniband);
                for bit in turned.iter().take(4) {
                    let bit = usize::from(*bit) % (bytes.len() * 8);
                    bytes[bit / 8] ^= 0x80 >> (bit % 8);
                }
                let own = COMMANDS[usize::from(*command) % COMMANDS.len()].1;
                say(&mut device, by.map_or(own, call), *to, &bytes, *room);
            }
            Step::Bytes { by, to, bytes, room } => say(&mut device, call(*by), *to, bytes, *room),
            Step::Ring { which } => device.ring(*which),
            Step::Destroy { which } => {
                let before = device.objects();
                let gone = device.destroy(*which);
                assert!(device.objects() == before - u32::from(gone && before > 0));
            }
        }
    }
});
