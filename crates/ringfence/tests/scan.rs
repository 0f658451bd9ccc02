//! The scanner on a corpus of harmful and harmless samples, with the rates printed, and on garbage.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringfence::skills::scan::{Declared, Language, Scan, Verdict, scan};

const LANGUAGES: [Language; 4] = [Language::Python, Language::JavaScript, Language::TypeScript, Language::Bash];

fn language(path: &Path) -> Language {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("py") => Language::Python,
        Some("js" | "mjs") => Language::JavaScript,
        Some("ts") => Language::TypeScript,
        Some("sh") => Language::Bash,
        other => panic!("{other:?}"),
    }
}

fn corpus(folder: &str) -> Vec<(String, Language, Scan)> {
    let declared = Declared { hosts: vec!["api.example.org".into()], ..Declared::default() };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scan").join(folder);
    let mut scans: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let source = std::fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, language(&path), scan(language(&path), &source, &declared))
        })
        .collect();
    scans.sort_by(|a, b| a.0.cmp(&b.0));
    scans
}

/// Prints how many of each verdict there are, by language, and the findings of those that `show`.
fn rates(folder: &str, scans: &[(String, Language, Scan)], show: impl Fn(Verdict) -> bool) {
    let mut table: BTreeMap<String, BTreeMap<Verdict, usize>> = BTreeMap::new();
    for (name, language, scan) in scans {
        for key in [format!("{language:?}"), "all".to_owned()] {
            *table.entry(key).or_default().entry(scan.verdict).or_default() += 1;
        }
        if show(scan.verdict) {
            let rules: Vec<String> = scan.findings.iter().map(|f| format!("{}:{}", f.rule, f.line)).collect();
            println!("  {name}: {:?} {}", scan.verdict, rules.join(" "));
        }
    }
    for (language, verdicts) in table {
        let total: usize = verdicts.values().sum();
        let parts: Vec<String> =
            verdicts.iter().map(|(verdict, n)| format!("{verdict:?} {n} ({}%)", n * 100 / total)).collect();
        println!("{folder} {language}: {total} samples: {}", parts.join(", "));
    }
}

#[test]
fn every_harmful_sample_is_found() {
    let scans = corpus("harmful");
    rates("harmful", &scans, |verdict| verdict != Verdict::Dangerous);
    assert!(scans.len() >= 60);
    let missed: Vec<&String> = scans.iter().filter(|(_, _, s)| s.verdict == Verdict::Clean).map(|(n, ..)| n).collect();
    assert!(missed.is_empty(), "missed: {missed:?}");
}

#[test]
fn no_harmless_sample_is_called_dangerous() {
    let scans = corpus("harmless");
    rates("harmless", &scans, |verdict| verdict != Verdict::Clean);
    assert!(scans.len() >= 60);
    let wrong: Vec<&String> =
        scans.iter().filter(|(_, _, s)| s.verdict == Verdict::Dangerous).map(|(n, ..)| n).collect();
    assert!(wrong.is_empty(), "wrongly dangerous: {wrong:?}");
}
