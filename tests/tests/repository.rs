//! The repository tests itself: what is promised of its sources is looked up in
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The bugs that others had and ade must not: each has a test of that name.
const CASES: &str = "
    A01 A03 A04 A06 A07 A09 A11 A14 A15 A16 A17 A18 A20 A22
    B01 B03 B04 B05 B07 B08
    C01 C03 C06 C08 C09 C10 C12 C14 C16 C17
    D01 D02 D03 D04 D06 D08 D10 D12 D14 D16
    E01 E03 E04 E05 E06
    F01 F03 F04 F05 F08 F10 F11 F12 F14
    G01 G02 G05 G07 G08 G09
    H01 H02 H04 H05 H07 H10 H12 H13 H14 H15
    I01 I04 I05 I07 I08
    J01 J03 J05 J08 J09 J10 J12
    K01 K02 K04 K06
    L01 L03 L06";

/// Those that wait for something that ade does not have yet.
const WAITING: &[(&str, &str)] = &[
    ("K01", "terminals"),
    ("K02", "terminals"),
    ("K04", "terminals"),
    ("K06", "terminals"),
];

/// The crates of the workspace, by folder.
const CRATES: &[&str] = &["protocol", "leases", "workers", "broker", "cli", "tests"];

fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("the workspace").to_owned()
}

/// Every Rust file below a folder, by its path in the workspace.
fn sources(below: &str) -> Vec<(String, String)> {
    fn walk(folder: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).expect("below the root");
                let text = fs::read_to_string(&path).expect("a source");
                found.push((name.display().to_string(), text));
            }
        }
    }
    let root = workspace();
    let mut found = Vec::new();
    walk(&root.join(below), &root, &mut found);
    assert!(!found.is_empty(), "{below} has no sources");
    found
}

/// Names of the functions that are run as tests.
fn tests_of(source: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut attributes: Vec<&str> = Vec::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let name = line
            .strip_prefix("async ")
            .unwrap_or(line)
            .strip_prefix("fn ")
            .and_then(|rest| rest.split('(').next());
        if let Some(name) = name {
            let is_test =
                |line: &&str| line.starts_with("#[test") || line.starts_with("#[tokio::test");
            if attributes.iter().any(is_test)
                && !attributes.iter().any(|line| line.starts_with("#[ignore"))
            {
                names.push(name);
            }
        }
        // Comments may stand between an attribute and its function, and the
        // attribute of a call over several lines has lines of its own.
        let between = line.starts_with("//") || !line.ends_with(['{', '}', ';']);
        if name.is_some() || !between {
            attributes.clear();
        }
    }
    names
}

/// A struct that is read by what is derived for it alone may also be a list.
#[test]
fn what_is_read_into_a_struct_is_read_strictly() {
    // Free values, raw text and words: there is no struct in them.
    let free = [
        "Value>",
        "Value =",
        "Value::",
        "IgnoredAny>",
        "String>",
        "self.example",
    ];
    // Reads no list by itself.
    let own_reader = "let found: Found =";
    let own = ["protocol/src/strict.rs", "leases/src/object.rs"];
    let mut found = Vec::new();
    for folder in [
        "protocol/src",
        "leases/src",
        "workers/src",
        "broker/src",
        "cli/src",
    ] {
        for (path, text) in sources(folder) {
            if path.ends_with("tests.rs") || own.contains(&path.as_str()) {
                continue;
            }
            let text = text.split("mod tests {").next().unwrap_or_default();
            let reads = text
                .lines()
                .filter(|line| line.contains("serde_json::from_"));
            let reads = reads.filter(|line| !line.contains(own_reader));
            let strange = reads.filter(|line| !free.iter().any(|word| line.contains(word)));
            found.extend(strange.map(|line| format!("{path}: {}", line.trim())));
        }
    }
    assert_eq!(found, [""; 0], "read it with `ade_protocol::strict`");
}

/// What is wrong with the tests of the cases; nothing: every case has one.
fn faults(cases: &[&str], waiting: &[&str], tests: &BTreeSet<String>) -> Vec<String> {
    let has = |id: &str| {
        let prefix = format!("{}_", id.to_lowercase());
        tests.iter().any(|name| name.starts_with(&prefix))
    };
    let mut faults = Vec::new();
    for id in cases {
        match (has(id), waiting.contains(id)) {
            (false, false) => faults.push(format!("{id} has no test")),
            (true, true) => faults.push(format!("{id} has a test and is said to wait for one")),
            _ => {}
        }
    }
    for id in waiting.iter().filter(|id| !cases.contains(id)) {
        faults.push(format!("{id} is no case"));
    }
    faults
}

#[test]
fn every_case_has_a_test_of_its_name() {
    let cases: Vec<&str> = CASES.split_whitespace().collect();
    let waiting: Vec<&str> = WAITING.iter().map(|(id, _)| *id).collect();
    let mut tests = BTreeSet::new();
    for folder in CRATES {
        for (_, source) in sources(folder) {
            tests.extend(tests_of(&source).into_iter().map(str::to_owned));
        }
    }
    assert!(tests.len() > 300, "only {} tests were found", tests.len());
    let faults = faults(&cases, &waiting, &tests);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_case_without_a_test_and_a_stale_exemption_are_found() {
    let source = "
        #[test]
        fn a01_is_tested() {}
        #[tokio::test(start_paused = true)]
        async fn b02_is_tested() {}
        #[test]
        #[ignore]
        fn c03_is_never_run() {}
        fn d04_is_no_test() {}
        // fn e05_is_a_comment() {}
    ";
    assert_eq!(tests_of(source), ["a01_is_tested", "b02_is_tested"]);
    let tests = tests_of(source).into_iter().map(str::to_owned).collect();
    let found = faults(
        &["A01", "B02", "C03", "D04", "F06"],
        &["B02", "F06", "G07"],
        &tests,
    );
    let expected = [
        "B02 has a test and is said to wait for one",
        "C03 has no test",
        "D04 has no test",
        "G07 is no case",
    ];
    assert_eq!(found, expected);
}

/// Files that write to the standard streams, and what of it is right.
const WRITERS: &[(&str, &str)] = &[
    ("cli/src/output.rs", "the command line's one way to print"),
    (
        "workers/src/entry.rs",
        "why a worker cannot begin, for its file",
    ),
    (
        "workers/src/providers/scripted/mod.rs",
        "frames of the scripted host",
    ),
    (
        "workers/src/providers/scripted/store.rs",
        "what an agent says of its file",
    ),
    (
        "workers/src/providers/scripted/turn.rs",
        "what a script asks for",
    ),
];

/// Whether a module is named as those are that only tests have.
fn is_of_tests(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/")
}

/// Ways to write to a standard stream. Asking a stream what it is is no such way.
fn writes(source: &str) -> bool {
    let tests = "#[cfg(test)]\nmod tests {";
    let code = source.split(tests).next().unwrap_or(source);
    let mut lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.any(|line| {
        let macros = ["println!(", "print!(", "dbg!("];
        let streams = ["io::stdout()", "io::stderr()"];
        let asks = line.contains(".is_terminal()") || line.contains("stderr().as_fd()");
        macros.iter().any(|way| line.contains(way))
            || (streams.iter().any(|way| line.contains(way)) && !asks)
    })
}

#[test]
fn nothing_but_the_output_module_prints() {
    let mut writers = BTreeSet::new();
    for folder in CRATES.iter().filter(|folder| **folder != "tests") {
        for (path, source) in sources(&format!("{folder}/src")) {
            if !is_of_tests(&path) && writes(&source) {
                writers.insert(path);
            }
        }
    }
    let known: BTreeSet<String> = WRITERS.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(
        writers, known,
        "who writes to the standard streams has changed"
    );
    assert!(
        writes("    eprintln!(\"x\");") && writes("let _ = writeln!(std::io::stderr(), \"x\");")
    );
    assert!(writes("#[cfg(test)]\nmod tests;\n    println!(\"x\");"));
    assert!(!writes("#[cfg(test)]\nmod tests {\n    println!(\"x\");"));
    assert!(is_of_tests("x/src/y/tests.rs") && !is_of_tests("x/src/contests.rs"));
    assert!(!writes("// println!(\"x\")") && !writes("io::stderr().is_terminal()"));
}

/// Every exit code of the table means something to somebody.
#[test]
fn the_exit_codes_are_a_table_and_no_other_number_leaves_a_process() {
    let folders = ["cli/src", "broker/src"];
    for (path, source) in folders.iter().flat_map(|folder| sources(folder)) {
        for line in source.lines() {
            let line = line.trim();
            let number = line
                .split("ExitCode::from(")
                .nth(1)
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
            assert!(!number, "{path}: a bare exit code in {line:?}");
        }
    }
    let numbers: Vec<u8> = ade_protocol::exit::ALL
        .iter()
        .map(|(code, _)| *code)
        .collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
}

#[test]
fn lints_are_expected_with_a_reason_and_never_allowed() {
    for (path, source) in CRATES.iter().flat_map(|folder| sources(folder)) {
        for line in source.lines().map(str::trim_start) {
            let allowed = line.starts_with("#[allow") || line.starts_with("#![allow");
            assert!(!allowed, "{path}: {line}");
        }
        assert!(
            !source.contains(concat!("unsafe", " {")) && !source.contains(concat!("unsafe", " fn")),
            "{path} has unsafe code"
        );
    }
}

/// Systems differ in two files and nowhere else: whatever is asked of the one is
/// in the other too.
#[test]
fn platform_modules_have_the_same_functions_on_each_system() {
    fn functions(source: &str) -> BTreeSet<&str> {
        let lines = source.lines().filter(|line| line.starts_with("pub"));
        lines
            .filter_map(|line| line.split_once("fn "))
            .filter_map(|(_, rest)| rest.split(['(', '<']).next())
            .collect()
    }
    let mut pairs = 0;
    for folder in CRATES {
        let all = sources(folder);
        for (path, linux) in &all {
            let Some(module) = path.strip_suffix("linux.rs") else {
                continue;
            };
            let other = format!("{module}macos.rs");
            let macos = all.iter().find(|(path, _)| *path == other);
            let (_, macos) = macos.unwrap_or_else(|| panic!("{other} is missing"));
            let (linux, macos) = (functions(linux), functions(macos));
            let odd: Vec<_> = macos.difference(&linux).collect();
            assert!(odd.is_empty(), "{other} has {odd:?}, Linux has not");
            for name in linux.difference(&macos) {
                let asked = format!("platform::{name}(");
                let who = all.iter().find(|(_, source)| source.contains(&asked));
                let who = who.map(|(path, _)| path);
                assert_eq!(who, None, "{name} is asked for and missing in {other}");
            }
            pairs += 1;
        }
    }
    assert!(pairs >= 3, "{pairs} pairs");
}
