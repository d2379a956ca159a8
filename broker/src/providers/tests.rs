use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ade_protocol::action::{ChatCreate, PermissionMode};
use tempfile::TempDir;

use super::*;

/// While one test writes a script, a child that another test starts would
/// inherit the open file for a moment, and the script could not be executed
/// ("text file busy"). So there is one machine at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A user's home with programs that are scripts.
struct Machine {
    _turn: MutexGuard<'static, ()>,
    folder: TempDir,
    env: BTreeMap<String, OsString>,
    config: String,
}

const HOST: HostFiles = &[("pi.mjs", "// host")];

impl Machine {
    fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("bin")).unwrap();
        let env = BTreeMap::from([
            ("HOME".to_owned(), path("user").into()),
            (
                "PATH".to_owned(),
                format!("{}:/usr/bin-of-nobody", path("bin").display()).into(),
            ),
        ]);
        Self {
            _turn: turn,
            folder,
            env,
            config: String::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `#!/bin/sh` finds what the script needs by absolute names only.
    fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    fn node(&self, name: &str, version: &str) -> PathBuf {
        self.program(name, &format!("echo {version}"))
    }

    fn package(&self, root: &str, name: &str, version: &str) -> PathBuf {
        let root = self.path(root);
        fs::create_dir_all(root.join("dist/bundle")).unwrap();
        fs::write(root.join("dist/bundle/index.js"), "").unwrap();
        fs::write(root.join("dist/bundle/cli.js"), "").unwrap();
        fs::set_permissions(
            root.join("dist/bundle/cli.js"),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
        let manifest = format!(
            r#"{{"name":"{name}","version":"{version}","main":"./dist/index.js","engines":{{"node":">=22.19.0"}}}}"#
        );
        fs::write(root.join("package.json"), manifest).unwrap();
        root
    }

    fn providers(&self) -> Providers {
        let home = Home::at(self.path("ade"), None).unwrap().prepare().unwrap();
        fs::write(home.config_file(), &self.config).unwrap();
        let config = Config::load(&home, |name| self.env.get(name).cloned()).unwrap();
        let mut providers = Providers::new(home, Arc::new(config), self.env.clone(), HOST);
        providers.prefixes = vec![self.path("usr")];
        providers
    }

    fn pi(&self) -> Result<PiInstall, PiBlocker> {
        self.providers().pi()
    }
}

fn row(provider: &str) -> SessionRow {
    let create = ChatCreate {
        provider: provider.into(),
        lane: "/lane".into(),
        model: Some("a/b".into()),
        thinking: None,
        permission: PermissionMode::Default,
        session_file: None,
        take_over: false,
        agent_dir: None,
        title: None,
        first_event_ms: None,
    };
    SessionRow::new("ses_1".into(), &create, "/lane".into(), "t".into())
}

#[test]
fn what_is_fixed_at_a_start_tells_modes_changes_and_folders_apart() {
    let machine = Machine::new();
    let providers = machine.providers();
    let first = row("pi");
    let same = providers.spec(&first);
    let models = SessionRow {
        model: Some("c/d".into()),
        thinking: Some("high".into()),
        ..first.clone()
    };
    assert_eq!(providers.spec(&models), same, "these can be changed later");
    let others = [
        SessionRow {
            permission: PermissionMode::Plan,
            ..first.clone()
        },
        SessionRow {
            policy: 2,
            ..first.clone()
        },
        SessionRow {
            agent_dir: Some("/elsewhere".into()),
            ..first
        },
    ];
    for other in others {
        assert_ne!(providers.spec(&other), same, "{other:?}");
    }
    let text = serde_json::to_string(&same).unwrap();
    assert_eq!(serde_json::from_str::<LaunchSpec>(&text).unwrap(), same);
}

#[test]
fn pi_is_found_from_its_command_and_node_on_path() {
    let machine = Machine::new();
    let root = machine.package("user/.npm-global/lib/node_modules/x", pi::PACKAGE, "1.6.0");
    symlink(root.join("dist/bundle/cli.js"), machine.path("bin/pi")).unwrap();
    let node = machine.node("bin/node", "v22.19.0");
    let found = machine.pi().unwrap();
    assert_eq!(found.package_root, fs::canonicalize(root).unwrap());
    assert_eq!((found.node, found.node_version), (node, Version(22, 19, 0)));
    assert_eq!(found.version, Version(1, 6, 0));
}

#[test]
fn pi_is_found_in_the_usual_folders_and_what_is_named_wins() {
    let mut machine = Machine::new();
    machine.node("bin/node", "v24.1.0");
    for root in ["usr/lib", "user/.local/lib", "user/.pi/agent"] {
        let root = machine.package(
            &format!("{root}/node_modules/{}", pi::PACKAGE),
            pi::PACKAGE,
            "1.2.3",
        );
        assert_eq!(machine.pi().unwrap().package_root, root);
    }
    let named = machine.package("elsewhere", pi::PACKAGE, "2.0.1");
    machine
        .env
        .insert("PI_CODING_AGENT_PACKAGE_ROOT".into(), named.clone().into());
    assert_eq!(machine.pi().unwrap().package_root, named);
    let node = machine.node("special/node", "v22.20.0");
    machine.config = format!("[providers.pi]\nnode = \"{}\"\n", node.display());
    assert_eq!(machine.pi().unwrap().node, node);
}

#[test]
fn an_unusable_install_does_not_hide_a_usable_one() {
    let machine = Machine::new();
    machine.node("bin/node", "v20.20.2");
    let newer = machine.node("user/.nvm/versions/node/v22.21.0/bin/node", "v22.21.0");
    machine.node("user/.nvm/versions/node/v9.0.0/bin/node", "v9.0.0");
    let modules = "user/.local/lib/node_modules";
    machine.package(
        &format!("{modules}/@mariozechner/pi-coding-agent"),
        "@mariozechner/pi-coding-agent",
        "0.73.1",
    );
    let good = machine.package(
        &format!("usr/lib/node_modules/{}", pi::PACKAGE),
        pi::PACKAGE,
        "1.6.0",
    );
    let found = machine.pi().unwrap();
    assert_eq!((found.package_root, found.node), (good, newer));
}

#[test]
fn every_blocker_names_what_was_found_and_the_remedy() {
    let machine = Machine::new();
    let blocked = |machine: &Machine, words: &[&str]| {
        let blocker = machine.pi().unwrap_err();
        let text = format!("{blocker}; {}", blocker.hints().join("; "));
        for word in words {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(blocker.exit_code(), 6);
        let info = machine.providers().list().remove(0);
        assert!(!info.usable && info.blocker == Some(text), "{info:?}");
        blocker
    };
    let blocker = blocked(
        &machine,
        &["not installed", "npm install -g", "ADE_PI_PACKAGE_ROOT"],
    );
    assert_eq!(blocker, PiBlocker::NoPackage);

    let place = format!("usr/lib/node_modules/{}", pi::PACKAGE);
    let root = machine.package(&place, pi::PACKAGE, "0.74.2");
    let blocker = blocked(
        &machine,
        &["0.74.2", root.to_str().unwrap(), "1.0.0", "@latest"],
    );
    assert!(matches!(blocker, PiBlocker::OldPi { .. }));

    fs::write(root.join("package.json"), "{\"name\":").unwrap();
    assert!(matches!(
        blocked(&machine, &["package.json", "again"]),
        PiBlocker::Damaged { .. }
    ));

    machine.package(&place, pi::PACKAGE, "1.6.0");
    let blocker = blocked(&machine, &["no Node", "22.19.0", "ADE_NODE"]);
    assert!(matches!(blocker, PiBlocker::NoNode { .. }));

    let node = machine.node("bin/node", "v22.18.9");
    let blocker = blocked(&machine, &["22.18.9", node.to_str().unwrap(), "22.19.0"]);
    assert!(matches!(blocker, PiBlocker::NodeTooOld { .. }));

    fs::remove_file(root.join("dist/bundle/index.js")).unwrap();
    assert!(matches!(
        blocked(&machine, &["dist/index.js is missing"]),
        PiBlocker::Damaged { .. }
    ));
}

#[test]
fn what_is_named_and_wrong_is_not_replaced_by_something_else() {
    let mut machine = Machine::new();
    machine.node("bin/node", "v24.0.0");
    machine.package(
        &format!("usr/lib/node_modules/{}", pi::PACKAGE),
        pi::PACKAGE,
        "1.6.0",
    );
    assert!(machine.pi().is_ok());
    for (script, problem) in [
        ("exit 3", "exit code 3"),
        ("echo hello", "version"),
        ("kill -9 $$", "SIGKILL"),
    ] {
        let node = machine.program("bad/node", script);
        machine.env.insert("ADE_NODE".into(), node.into());
        let blocker = machine.pi().unwrap_err();
        assert!(matches!(blocker, PiBlocker::NodeFailed { .. }), "{blocker}");
        let text = blocker.to_string();
        assert!(
            text.contains(problem) && text.contains("ADE_NODE"),
            "{text}"
        );
    }
    machine
        .env
        .insert("ADE_NODE".into(), machine.path("nothing").into());
    assert!(matches!(machine.pi(), Err(PiBlocker::NodeFailed { .. })));
    machine.env.remove("ADE_NODE");

    machine
        .env
        .insert("ADE_PI_PACKAGE_ROOT".into(), machine.path("nothing").into());
    let text = machine.pi().unwrap_err().to_string();
    assert!(
        text.contains("ADE_PI_PACKAGE_ROOT") && text.contains("no package.json"),
        "{text}"
    );
    let other = machine.package("other", "left-pad", "1.0.0");
    machine
        .env
        .insert("ADE_PI_PACKAGE_ROOT".into(), other.into());
    let text = machine.pi().unwrap_err().to_string();
    assert!(text.contains("left-pad"), "{text}");
}

#[test]
fn a_replaced_node_is_asked_again() {
    let machine = Machine::new();
    machine.package(
        &format!("usr/lib/node_modules/{}", pi::PACKAGE),
        pi::PACKAGE,
        "1.6.0",
    );
    machine.node("bin/node", "v20.1.0");
    let providers = machine.providers();
    assert!(providers.pi().is_err());
    machine.node("bin/node", "v22.19.10");
    assert_eq!(providers.pi().unwrap().node_version, Version(22, 19, 10));
}

#[test]
fn an_unknown_provider_is_answered_with_the_known_ones() {
    let machine = Machine::new();
    let providers = machine.providers();
    let error = providers.check("cursr").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no provider `cursr`; there are: pi, scripted"
    );
    assert_eq!(error.exit_code(), ade_protocol::exit::PROVIDER_NOT_USABLE);
    assert!(providers.launch(&row("cursr")).is_err());
    let listed = providers.list();
    assert_eq!(listed[1].provider, "scripted");
    assert!(listed[1].usable && listed[1].path.is_none());
}

#[test]
fn a_launch_of_pi_is_complete() {
    let mut machine = Machine::new();
    machine.node("bin/node", "v24.0.0");
    let root = machine.package(
        &format!("usr/lib/node_modules/{}", pi::PACKAGE),
        pi::PACKAGE,
        "1.6.0",
    );
    let agent_dir = machine.path("user/.pi/agent");
    fs::create_dir_all(&agent_dir).unwrap();
    fs::write(
        agent_dir.join("models.json"),
        r#"{"providers":{"x":{"apiKey":"$MY_KEY"}}}"#,
    )
    .unwrap();
    machine.env.insert("MY_KEY".into(), "k".into());
    machine.env.insert("BROKER_TOKEN".into(), "canary".into());

    let providers = machine.providers();
    let launch = providers.launch(&row("pi")).unwrap();
    let HostCommand::Pi { node, script } = &launch.host else {
        panic!("{launch:?}")
    };
    assert_eq!(*node, machine.path("bin/node").display().to_string());
    assert_eq!(fs::read_to_string(script).unwrap(), "// host");
    let init = &launch.init;
    assert_eq!(
        (init.session_key.as_str(), init.cwd.as_str()),
        ("ses_1", "/lane")
    );
    assert_eq!(init.agent_dir, None, "Pi finds its own");
    assert_eq!(
        init.package.as_ref().unwrap().package_root,
        Some(root.display().to_string())
    );
    assert_eq!(
        init.store.session_root,
        agent_dir.join("sessions").display().to_string()
    );
    assert_eq!(init.store.session_storage_dir, None);
    assert_eq!(init.session, SessionChoice::default());
    assert_eq!(init.approval_tools, ["bash", "edit", "write"]);
    assert!(init.ask_user_tool && !init.extensions);
    let env = providers.worker_env("pi", &launch.env_names, "m");
    assert_eq!(env.get(std::ffi::OsStr::new("MY_KEY")), Some(&"k".into()));
    assert!(!format!("{env:?}").contains("canary"));
    assert!(!format!("{providers:?}").contains("canary"));

    // A folder of its own, and a store that was configured.
    let own = SessionRow {
        agent_dir: Some(machine.path("own").display().to_string()),
        ..row("pi")
    };
    machine.env.insert(
        "PI_CODING_AGENT_SESSION_DIR".into(),
        machine.path("store").into(),
    );
    let init = machine.providers().launch(&own).unwrap().init;
    assert_eq!(init.agent_dir, own.agent_dir);
    let store = machine.path("store").display().to_string();
    assert_eq!(init.store.session_root, store);
    assert_eq!(init.store.session_storage_dir, Some(store));
}

#[test]
fn a_launch_of_the_scripted_provider_needs_nothing() {
    let mut machine = Machine::new();
    let launch = machine.providers().launch(&row("scripted")).unwrap();
    assert_eq!(launch.host, HostCommand::Scripted);
    assert!(Path::new(&launch.init.store.session_root).is_dir());
    assert!(launch.env_names.is_empty());

    let host = machine.program("host", "exit 0");
    machine.config = format!(
        "[providers.scripted]\nhost = \"{}\"\nargs = [\"-x\"]\n",
        host.display()
    );
    let launch = machine.providers().launch(&row("scripted")).unwrap();
    let program = host.display().to_string();
    assert_eq!(
        launch.host,
        HostCommand::Program {
            program,
            args: vec!["-x".into()]
        }
    );
    fs::remove_file(host).unwrap();
    let error = machine.providers().check("scripted").unwrap_err();
    assert_eq!(error.exit_code(), 6);
    assert!(
        error.hints()[0].contains("config.toml"),
        "{:?}",
        error.hints()
    );
}

#[test]
fn a_session_is_resumed_exactly_when_something_was_said_in_it() {
    let known = SessionRow {
        session_file: Some("/s/f.jsonl".into()),
        provider_session_id: Some("p1".into()),
        ..row("pi")
    };
    let choice = |row: &SessionRow, exists| {
        let choice = session_choice(row, |_| exists);
        (
            choice.session_file.is_some(),
            choice.session_id.is_some(),
            choice.resume,
        )
    };
    assert_eq!(choice(&row("pi"), false), (false, false, false));
    assert_eq!(choice(&known, true), (true, true, true));
    assert_eq!(choice(&known, false), (false, true, false), "only planned");
    let said = SessionRow {
        has_history: true,
        ..known
    };
    assert_eq!(
        choice(&said, false),
        (true, true, true),
        "its loss is an error"
    );
}

#[test]
fn versions_are_read_as_they_are_written() {
    let table = [
        ("v22.19.0\n", Some(Version(22, 19, 0))),
        (">=22.19.0", Some(Version(22, 19, 0))),
        (">= 22", Some(Version(22, 0, 0))),
        ("24.0.0-nightly2026", Some(Version(24, 0, 0))),
        ("1.6", Some(Version(1, 6, 0))),
        ("", None),
        ("hello", None),
        ("99999999999.0.0", None),
    ];
    for (text, expected) in table {
        assert_eq!(Version::parse(text), expected, "{text}");
    }
    assert!(Version(22, 9, 0) < Version(22, 19, 0));
}
