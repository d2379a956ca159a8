use super::*;

fn read(text: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_parts(Some((Path::new("/h/config.toml"), text)), |name| {
        env.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.into())
    })
}

#[test]
fn the_defaults_are_the_contract() {
    let config = Config::default();
    let ms = Duration::from_millis;
    for (provider, dispose) in [
        ("pi", 1_500),
        ("cursor", 3_000),
        ("droid", 800),
        ("acp", 1_500),
    ] {
        let timing = config.timing(provider);
        assert_eq!(timing.dispose_grace, ms(dispose), "{provider}");
        assert_eq!(timing.term_to_kill, ms(1_500));
        assert_eq!(timing.idle_put_away, ms(30 * 60 * 1000));
        assert_eq!(timing.first_event, ms(90_000));
    }
    for (provider, able) in [("cursor", true), ("pi", false), ("scripted", false)] {
        let rules = config.turn_rules(provider, None);
        assert_eq!(rules.timing, Timing::new(ms(90_000)), "{provider}");
        let recovery = rules.recovery;
        assert_eq!((recovery.fresh_agent, recovery.reconnects), (able, able));
    }
    assert_eq!(config.worker_timing("pi"), WorkerTiming::default());
    assert_eq!(config.timing("never-heard-of"), config.timing("acp"));
    assert_eq!(config.stop_bound("pi"), ms(4_500));
    assert_eq!(config.pool().max_workers, 256);
    assert!(config.pool().max_starting >= 1);
    assert!(
        config
            .values()
            .iter()
            .all(|value| value.origin == "default")
    );
}

#[test]
fn values_remember_where_they_come_from() {
    let text = "[pool]\nmax_workers = 3\n[providers.pi]\nfirst_event_ms = 0x10\nnode = '/a/node'\nagent_dir = '~/pi'\n[providers.scripted]\nhost = \"/x\"\nargs = ['a', 'b']\n";
    let env = [
        ("HOME", "/home/me"),
        ("ADE_NODE", "/b/node"),
        ("PI_CODING_AGENT_PACKAGE_ROOT", "/pkg"),
    ];
    let config = read(text, &env).unwrap();
    assert_eq!(config.pool().max_workers, 3);
    assert_eq!(config.timing("pi").first_event, Duration::from_millis(16));
    assert_eq!(
        config.pi(),
        PiConfig {
            node: Some("/b/node".into()),
            package_root: Some("/pkg".into()),
            agent_dir: Some("/home/me/pi".into())
        }
    );
    assert_eq!(
        config.scripted(),
        Some(HostProgram {
            program: "/x".into(),
            args: vec!["a".into(), "b".into()]
        })
    );
    assert_eq!(config.origin("pool.max_workers"), "/h/config.toml");
    assert_eq!(config.origin("providers.pi.node"), "ADE_NODE");
    assert_eq!(
        config.origin("providers.pi.package_root"),
        "PI_CODING_AGENT_PACKAGE_ROOT"
    );
    assert_eq!(config.origin("pool.max_starting"), "default");
    let both = [
        ("ADE_PI_PACKAGE_ROOT", "/one"),
        ("PI_CODING_AGENT_PACKAGE_ROOT", "/two"),
    ];
    assert_eq!(
        read("", &both).unwrap().pi().package_root,
        Some("/one".into())
    );
}

#[test]
fn what_is_wrong_is_named_with_file_line_key_and_remedy() {
    let table = [
        (
            "\n[pool]\nmax_worker = 3\n",
            "/h/config.toml:3",
            "pool.max_worker",
            "max_workers",
        ),
        (
            "[pol]\n",
            "/h/config.toml:1",
            "`pol`",
            "pool, providers, turns, worker",
        ),
        ("pool = 3\n", "/h/config.toml:1", "`pool`", "pool"),
        (
            "[pool]\nmax_workers = 0\n",
            "/h/config.toml:2",
            "pool.max_workers",
            "1 to",
        ),
        (
            "[pool]\nmax_workers = \"3\"\n",
            "/h/config.toml:2",
            "pool.max_workers",
            "number",
        ),
        (
            "[providers.pi]\n\nfirst_event_ms = 1.5\n",
            "/h/config.toml:3",
            "first_event_ms",
            "milliseconds",
        ),
        (
            "[providers.pi]\nfirst_event_ms = -1\n",
            "/h/config.toml:2",
            "first_event_ms",
            "milliseconds",
        ),
        (
            "[providers.pi]\nnode = \"bin/node\"\n",
            "/h/config.toml:2",
            "providers.pi.node",
            "absolute",
        ),
        (
            "[providers.pie]\n",
            "/h/config.toml:1",
            "providers.pie",
            "scripted",
        ),
        (
            "[providers.scripted]\nargs = [1]\n",
            "/h/config.toml:2",
            "scripted.args",
            "strings",
        ),
        (
            "a = 1\nb = = 2\n",
            "/h/config.toml:2",
            "not TOML",
            "correct",
        ),
        (
            "[pool]\nmax_workers = 1\nmax_workers = 2\n",
            "/h/config.toml:3",
            "not TOML",
            "correct",
        ),
    ];
    for (text, place, problem, remedy) in table {
        let error = read(text, &[]).unwrap_err();
        let (shown, hints) = (error.to_string(), error.hints());
        assert!(shown.starts_with(place), "{shown}");
        assert!(shown.contains(problem), "{shown}");
        assert!(hints[0].contains(remedy), "{shown}: {hints:?}");
        assert_eq!(error.exit_code(), 2);
    }
    let error = read("", &[("ADE_NODE", "node")]).unwrap_err();
    assert!(error.to_string().starts_with("ADE_NODE: `node`"), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_none_is_not() {
    let folder = tempfile::TempDir::new().unwrap();
    let home = Home::at(folder.path().to_owned(), None).unwrap();
    assert!(Config::load(&home, |_| None).is_ok());
    std::fs::write(home.config_file(), [0xff, 0xfe]).unwrap();
    let error = Config::load(&home, |_| None).unwrap_err();
    assert!(error.to_string().contains("config.toml"), "{error}");
    std::fs::remove_file(home.config_file()).unwrap();
    std::fs::create_dir(home.config_file()).unwrap();
    assert!(Config::load(&home, |_| None).is_err());
}

#[test]
fn the_scripted_agent_can_be_told_how_to_recover() {
    let text = "[turns]\ncancel_ms = 70\n\
                [providers.scripted]\nrecovery = \"replay\"\nstale_token = \"reconnect\"\n";
    let rules = read(text, &[]).unwrap().turn_rules("scripted", None);
    assert!(rules.recovery.fresh_agent && rules.recovery.reconnects);
    assert_eq!(rules.timing.cancel, Duration::from_millis(70));
    let others = read(text, &[]).unwrap().turn_rules("pi", None);
    assert_eq!(others.recovery, Recovery::default());
}
