//! What feature `serde` writes and reads: configurations by the names of their fields, sets of ranks and addresses as
//! they are printed.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use epwire::launch::Launch;
use epwire::prefill::{PrefillConfig, PrefillPlan};
use epwire::{CommConfig, Device, EpConfig, Float16, Mask, Outcome, Payload, Plan};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{from_str, from_value, json, to_string, to_value};

/// Serialises the value and reads it back.
fn again<T: Serialize + DeserializeOwned>(value: &T) -> T {
    from_str(&to_string(value).unwrap()).unwrap()
}

#[test]
fn a_configuration_is_read_with_defaults_for_what_it_leaves_out() {
    let text = r#"{ "max_tokens": 128, "hidden": 7168, "experts": 256, "topk": 8, "dtype": "f16",
        "device": { "cuda": 3 }, "paths": { "vmm": false }, "deadline": { "secs": 2, "nanos": 0 } }"#;
    let config: EpConfig = from_str(text).unwrap();
    let mut expected = EpConfig::new(128, 7168, 256, 8).dtype(Float16::F16).device(Device::Cuda(3));
    expected.paths.vmm = false;
    expected.deadline = std::time::Duration::from_secs(2);
    assert_eq!(config, expected);
    assert_eq!(again(&config), config);
    let error = from_str::<EpConfig>(r#"{ "max_token": 128 }"#).unwrap_err();
    assert!(error.to_string().contains("unknown field `max_token`"), "{error}");
    let error = from_str::<EpConfig>(r#"{ "paths": { "queues": true } }"#).unwrap_err();
    assert!(error.to_string().contains("unknown field `queues`"), "{error}");
    let empty: EpConfig = from_str("{}").unwrap();
    assert!(Plan::new(&empty, 1).unwrap_err().to_string().contains("max_tokens"));
    let comm = CommConfig::default().heap_bytes(4096);
    assert_eq!(again(&comm), comm);
    let prefill = PrefillConfig::new(EpConfig::new(64, 128, 4, 2)).ring_tokens(32);
    assert_eq!(again(&prefill), prefill);
    let default: PrefillConfig = from_value(json!({ "ep": to_value(&prefill.ep).unwrap() })).unwrap();
    assert_eq!(default, PrefillConfig::new(prefill.ep.clone()));
    let plan = PrefillPlan::new(&prefill, 2).unwrap();
    assert_eq!(again(&plan), plan);
}

#[test]
fn plans_and_launches_come_back() {
    let plan = Plan::new(&EpConfig::new(128, 7168, 256, 8), 8).unwrap();
    assert_eq!(again(&plan), plan);
    let variables = |name: &str| match name {
        "EPWIRE_RANK" => Some("1".to_owned()),
        "EPWIRE_WORLD" => Some("2".to_owned()),
        "EPWIRE_ADDR" => Some("[::1]:29700".to_owned()),
        _ => None,
    };
    let launch = Launch::detect(&variables).unwrap().unwrap();
    let value = to_value(&launch).unwrap();
    assert_eq!((&value["addresses"], &value["source"]), (&json!(["[::1]:29700"]), &json!("epwire")));
    assert_eq!(from_value::<Launch>(value).unwrap(), launch);
}

#[test]
fn an_outcome_names_ranks_as_it_prints_them() {
    let mut outcome = Outcome::default();
    outcome.missing = "0-3,7".parse().unwrap();
    outcome.suspects = Mask::all(1);
    let value = to_value(&outcome).unwrap();
    assert_eq!(value, json!({ "missing": "0-3,7", "record": null, "suspects": "0", "news": "none" }));
    assert_eq!(from_value::<Outcome>(value).unwrap(), outcome);
    assert!(from_value::<Outcome>(json!({ "missing": "7-3", "record": null, "suspects": "0" })).is_err());
    let opaque = Payload::Opaque { row_bytes: 16, scale_count: 0, scale_bytes: 1 };
    assert_eq!(again(&opaque), opaque);
}
