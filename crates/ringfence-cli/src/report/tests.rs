use super::*;

#[test]
fn a_device_has_a_line_and_a_place_in_json() {
    let with = |devices: &[&str]| Report {
        engine: "native".into(),
        guarantees: Vec::new(),
        devices: devices.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(table(&with(&[])), "engine native\n");
    assert_eq!(table(&with(&["/dev/kfd", "/dev/dri"])), "engine native\ndevice     /dev/kfd\ndevice     /dev/dri\n");
    assert!(json(&with(&["/dev/kfd"])).ends_with(",\"devices\":[\"/dev/kfd\"]}\n"));
    // One that an older release wrote.
    let older: Report = serde_json::from_str(r#"{"engine":"native","guarantees":[]}"#).unwrap();
    assert_eq!(older, with(&[]));
}
