//! The handed cases of ownership and of the choice of a session, and the store.

use crate::support::{Live, Scene, filled, fixture, iso_ago};
use ade_leases::lease::{AcquireError, Request, acquire};
use ade_leases::owner::{
    Claim, Damage, LAUNCH_GRACE, Owner, OwnerError, RESUME_GRACE, Replace, adoptable, claim,
    could_belong, read,
};
use ade_leases::record::OwnerKind;
use ade_leases::store::{
    Class, Lane, Rejection, Scope, Selection, Source, Terminal, checkout_override, classify,
    creation_target, find_by_id, find_file, list, locate, path_key, same_lane, select_candidate,
};
use jiff::Timestamp;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn header(id: &str, cwd: &Path, at: &str) -> String {
    let json = serde_json::json!({
        "type": "session", "version": 3, "id": id, "timestamp": at, "cwd": cwd,
    });
    format!("{json}\n")
}

/// A store and a lane in one temporary directory.
struct Shop {
    _dir: tempfile::TempDir,
    base: PathBuf,
    root: PathBuf,
    lane: PathBuf,
}

impl Shop {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temp dir");
        let base = dir.path().canonicalize().expect("it exists");
        let (root, lane) = (base.join("sessions"), base.join("app"));
        fs::create_dir(&root).expect("a store");
        fs::create_dir(&lane).expect("a lane");
        Self {
            _dir: dir,
            base,
            root,
            lane,
        }
    }

    fn session(&self, name: &str, id: &str, cwd: &Path) -> PathBuf {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, header(id, cwd, "2026-05-04T10:00:00.000Z")).expect("written");
        path
    }
}

fn at(stamp: &str) -> Timestamp {
    stamp.parse().expect("a time")
}

fn terminal(cwd: &Path) -> Terminal {
    Terminal {
        id: "term-1".to_owned(),
        cwd: cwd.to_owned(),
        started_at: Some(at("2026-05-04T10:00:01Z")),
        window: Duration::from_secs(60),
    }
}

#[test]
fn b01_a_session_that_a_chat_owns_is_never_picked_by_a_terminal() {
    let shop = Shop::new();
    for name in ["B01-mine.jsonl", "B01-chat.jsonl"] {
        let text = fixture(name).replace("/home/dev/app", &shop.lane.display().to_string());
        fs::write(shop.root.join(name), text).expect("written");
    }
    let owner = fixture("B01-chat.jsonl.ade-owner");
    fs::write(shop.root.join("B01-chat.jsonl.ade-owner"), owner).expect("written");
    let sessions = list(&shop.root, Scope::Lane(&shop.lane)).sessions;
    assert_eq!(sessions.len(), 2);
    let Selection::One(one) = select_candidate(&sessions, &terminal(&shop.lane), &[]) else {
        panic!("its own one");
    };
    assert_eq!(one.id, "s-mine");
    // Its own one was there before: then none, never the other.
    assert_eq!(
        select_candidate(&sessions, &terminal(&shop.lane), &[one.path]),
        Selection::None
    );
}

#[test]
fn a_tie_selects_none_and_only_creation_counts() {
    let shop = Shop::new();
    shop.session("a.jsonl", "a", &shop.lane);
    shop.session("b.jsonl", "b", &shop.lane);
    let sessions = list(&shop.root, Scope::Lane(&shop.lane)).sessions;
    let selection = select_candidate(&sessions, &terminal(&shop.lane), &[]);
    assert!(matches!(selection, Selection::Tie(all) if all.len() == 2));
    let mut late = terminal(&shop.lane);
    late.started_at = Some(at("2026-05-04T12:00:00Z"));
    assert_eq!(select_candidate(&sessions, &late, &[]), Selection::None);
    // Leased by somebody alive: not the terminal's.
    let request = Request {
        owner: OwnerKind::Sdk,
        owner_id: "x".to_owned(),
        wait: None,
    };
    let _lease = acquire(&shop.root.join("a.jsonl"), &request).expect("taken");
    let selection = select_candidate(&sessions, &terminal(&shop.lane), &[]);
    assert!(matches!(selection, Selection::One(one) if one.id == "b"));
}

#[test]
fn b03_a_terminal_that_holds_the_session_is_named_with_the_ways_out() {
    let (scene, live) = (Scene::new(), Live::sleep());
    let values = [
        ("LIVE_PID", live.pid().to_string()),
        ("LIVE_START", iso_ago(0)),
        ("SESSION_FILE", scene.session.display().to_string()),
        ("NOW_ISO", iso_ago(0)),
    ];
    let text = filled(&fixture("B03-cli-holder.ade-lease"), &values);
    scene.put(&text, Duration::ZERO);
    let request = Request {
        owner: OwnerKind::Sdk,
        owner_id: "chat-A".to_owned(),
        wait: None,
    };
    let error = acquire(&scene.session, &request).expect_err("held");
    assert!(matches!(error, AcquireError::Held(_)), "{error:?}");
    let message = error.to_string();
    for part in ["(cli, pty-9, since ", "stop that one", "start a new chat"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(fs::read_to_string(scene.lease()).expect("a lease"), text);
    assert_eq!(scene.litter(), ["S.jsonl.ade-lease"]);
}

#[test]
fn b04_a_damaged_owner_is_not_no_owner() {
    let damages = [
        ("B04a.jsonl.ade-owner", Damage::Empty),
        ("B04b.jsonl.ade-owner", Damage::Malformed),
        ("B04c.jsonl.ade-owner", Damage::UnknownKind),
        ("B04d.jsonl.ade-owner", Damage::BlankId),
    ];
    let mine = Claim {
        kind: OwnerKind::Cli,
        id: "term-1".to_owned(),
    };
    for (name, damage) in damages {
        let scene = Scene::new();
        let path = scene.beside(".ade-owner");
        fs::write(&path, fixture(name)).expect("written");
        let owner = read(&scene.session).expect("a look");
        assert_eq!(owner, Owner::Damaged(damage), "{name}");
        assert!(!adoptable(&owner, "term-1"));
        for replace in [Replace::Unowned, Replace::Owned] {
            let error = claim(&scene.session, &mine, replace).expect_err("kept");
            assert!(matches!(error, OwnerError::Damaged { .. }), "{error:?}");
        }
        assert_eq!(
            fs::read_to_string(&path).expect("it is there"),
            fixture(name)
        );
        claim(&scene.session, &mine, Replace::Anything).expect("a human says so");
        assert_eq!(
            read(&scene.session).expect("a look"),
            Owner::Owned(mine.clone())
        );
    }
}

#[test]
fn an_owner_is_written_whole_private_and_never_through_a_link() {
    let scene = Scene::new();
    let path = scene.beside(".ade-owner");
    assert_eq!(read(&scene.session).expect("a look"), Owner::None);
    assert!(adoptable(&Owner::None, "t"));
    let chat = Claim {
        kind: OwnerKind::Sdk,
        id: " chat-A ".to_owned(),
    };
    claim(&scene.session, &chat, Replace::Unowned).expect("claimed");
    let text = fs::read_to_string(&path).expect("it is there");
    assert_eq!(text, "{\"owner\":\"sdk\",\"ownerSessionId\":\"chat-A\"}\n");
    assert_eq!(
        fs::metadata(&path).expect("it is there").mode() & 0o7777,
        0o600
    );
    assert_eq!(scene.litter(), ["S.jsonl.ade-owner"]);

    let mine = Claim {
        kind: OwnerKind::Cli,
        id: "term-1".to_owned(),
    };
    let error = claim(&scene.session, &mine, Replace::Unowned).expect_err("another's");
    assert!(
        error.to_string().contains("belongs to sdk chat-A"),
        "{error}"
    );
    claim(&scene.session, &mine, Replace::Owned).expect("the last writer wins");
    let owner = read(&scene.session).expect("a look");
    assert!(adoptable(&owner, " term-1 ") && !adoptable(&owner, "term-2"));
    let blank = Claim {
        kind: OwnerKind::Cli,
        id: "  ".to_owned(),
    };
    assert!(matches!(
        claim(&scene.session, &blank, Replace::Owned),
        Err(OwnerError::BlankId)
    ));
}

#[test]
fn a20_a_planted_link_at_the_owner_file_is_not_followed() {
    let scene = Scene::new();
    let (path, victim) = (scene.beside(".ade-owner"), scene.dir.path().join("victim"));
    fs::write(&victim, "precious").expect("written");
    symlink(&victim, &path).expect("planted");
    assert_eq!(
        read(&scene.session).expect("a look"),
        Owner::Damaged(Damage::NotAFile)
    );
    let mine = Claim {
        kind: OwnerKind::Cli,
        id: "term-1".to_owned(),
    };
    claim(&scene.session, &mine, Replace::Anything).expect("the link itself is replaced");
    assert_eq!(fs::read_to_string(&victim).expect("the victim"), "precious");
    assert_eq!(read(&scene.session).expect("a look"), Owner::Owned(mine));
}

#[test]
fn a_pointer_is_repaired_only_when_both_times_are_known() {
    let start = Some(at("2026-05-04T10:00:00Z"));
    let rows = [
        ("2026-04-30T10:00:00Z", RESUME_GRACE, false),
        ("2026-05-04T09:59:30Z", RESUME_GRACE, true),
        ("2026-05-04T09:55:00Z", RESUME_GRACE, false),
        ("2026-05-04T09:55:00Z", LAUNCH_GRACE, true),
        ("2026-05-04T11:00:00Z", RESUME_GRACE, true),
    ];
    for (created, grace, expected) in rows {
        assert_eq!(
            could_belong(Some(at(created)), start, grace),
            expected,
            "{created}"
        );
    }
    assert!(could_belong(None, start, RESUME_GRACE));
    assert!(could_belong(start, None, RESUME_GRACE));
}

#[test]
fn b05_the_header_decides_not_the_folder() {
    let shop = Shop::new();
    let (nested, dashed) = (shop.base.join("client/app"), shop.base.join("client-app"));
    fs::create_dir_all(&nested).expect("a lane");
    fs::create_dir(&dashed).expect("a lane");
    let folder = shop.root.join("--home-dev-client-app--");
    fs::create_dir(&folder).expect("a folder");
    let text = fixture("B05--home-dev-client-app--.jsonl");
    let file = folder.join("s.jsonl");
    fs::write(
        &file,
        text.replace("/home/dev/client/app", &nested.display().to_string()),
    )
    .expect("written");
    assert!(list(&shop.root, Scope::Lane(&dashed)).sessions.is_empty());
    assert_eq!(list(&shop.root, Scope::Lane(&nested)).sessions.len(), 1);
    let class = classify(&file, &dashed, None, &shop.root);
    assert_eq!(class, Class::Rejected(Rejection::OtherLane));
    assert_eq!(
        classify(&file, &nested, Some("s-0005"), &shop.root),
        Class::Authorized(file)
    );
}

#[test]
fn b07_a_lane_is_the_same_through_a_link_and_by_text_when_it_is_gone() {
    let shop = Shop::new();
    let private = shop.base.join("private/var");
    fs::create_dir_all(private.join("folders/x1/T/w")).expect("a lane");
    symlink("private/var", shop.base.join("var")).expect("a link");
    let text =
        fixture("B07-private-var.jsonl").replace("/private/var", &private.display().to_string());
    fs::write(shop.root.join("s.jsonl"), text).expect("written");
    let asked = shop.base.join("var/folders/x1/T/w");
    assert_eq!(list(&shop.root, Scope::Lane(&asked)).sessions.len(), 1);
    let found = find_by_id(&shop.root, "s-0007", &asked).expect("found");
    assert_eq!(found.lane, Lane::Same);
    assert!(
        list(&shop.root, Scope::Lane(&shop.lane))
            .sessions
            .is_empty()
    );
    assert!(same_lane(
        Path::new("/no/such/dir/"),
        Path::new("/no/./such/dir")
    ));
    assert!(!same_lane(
        Path::new("/no/such/dir"),
        Path::new("/no/such/other")
    ));
}

#[test]
fn b08_a_moved_lane_is_found_by_id_and_told() {
    let shop = Shop::new();
    let (old, new) = (shop.base.join("agents/p"), shop.base.join("repos/p"));
    fs::create_dir_all(old.parent().expect("a folder")).expect("a folder");
    fs::create_dir_all(&new).expect("a lane");
    symlink(&new, &old).expect("a link");
    let text = fixture("B08-moved.jsonl").replace("/home/dev/agents/p", &old.display().to_string());
    fs::write(shop.root.join("s.jsonl"), text).expect("written");
    for asked in [&old, &new] {
        let found = find_by_id(&shop.root, "s-0008", asked).expect("found");
        assert_eq!(found.lane, Lane::Moved { now: new.clone() });
        assert_eq!(list(&shop.root, Scope::Lane(asked)).sessions.len(), 1);
    }
    fs::remove_file(&old).expect("the link goes");
    let found = find_by_id(&shop.root, "s-0008", &new).expect("still found");
    assert_eq!(found.lane, Lane::Gone);
    assert_eq!(find_by_id(&shop.root, "s-0009", &new), None);
}

#[test]
fn two_files_with_one_id_give_the_same_answer_every_time() {
    let shop = Shop::new();
    let one = shop.session("x/one.jsonl", "twice", &shop.lane);
    let two = shop.session("y/two.jsonl", "twice", &shop.lane);
    let listing = list(&shop.root, Scope::Everything);
    assert_eq!(listing.duplicates["twice"], [one.clone(), two.clone()]);
    for _ in 0..5 {
        let found = find_by_id(&shop.root, "twice", &shop.lane).expect("found");
        assert_eq!((&found.path, &found.duplicates), (&one, &vec![two.clone()]));
    }
    // Who names a file means that file.
    let named = find_file(&shop.root, &two, Some("twice"), &shop.lane).expect("found");
    assert_eq!(named.path, two);
    assert_eq!(find_file(&shop.root, &two, Some("other"), &shop.lane), None);
}

#[test]
fn classify_rejects_whatever_leaves_the_store() {
    let shop = Shop::new();
    let outside = shop.base.join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::create_dir(shop.root.join("real")).expect("a folder");
    symlink(&outside, shop.root.join("out")).expect("a link");
    symlink(shop.root.join("real"), shop.root.join("in")).expect("a link");
    symlink(shop.base.join("nowhere"), shop.root.join("dangling")).expect("a link");
    let rejected = |file: PathBuf| match classify(&file, &shop.lane, None, &shop.root) {
        Class::Rejected(why) => why,
        other => panic!("{}: {other:?}", file.display()),
    };
    assert_eq!(rejected("relative.jsonl".into()), Rejection::NotAbsolute);
    assert_eq!(rejected("".into()), Rejection::NotAbsolute);
    assert_eq!(rejected(outside.join("s.jsonl")), Rejection::Outside);
    assert_eq!(rejected(shop.root.join("out/s.jsonl")), Rejection::Outside);
    assert_eq!(rejected(shop.root.join("../s.jsonl")), Rejection::Outside);
    assert_eq!(
        rejected(shop.root.join("dangling/s.jsonl")),
        Rejection::DanglingLink
    );
    assert_eq!(rejected(shop.root.join("real")), Rejection::Unreadable);
    let planned = classify(
        &shop.root.join("in/new.jsonl"),
        &shop.lane,
        None,
        &shop.root,
    );
    assert_eq!(planned, Class::Pending(shop.root.join("real/new.jsonl")));
    let other = shop.session("other.jsonl", "o", &shop.base);
    assert_eq!(rejected(other), Rejection::OtherLane);
    let blank = shop.session("blank.jsonl", "b", Path::new(" "));
    assert_eq!(rejected(blank), Rejection::NoHeader);
    let mine = shop.session("mine.jsonl", "m", &shop.lane);
    let class = classify(&mine, &shop.lane, Some("x"), &shop.root);
    assert_eq!(class, Class::Rejected(Rejection::OtherId));
}

#[test]
fn the_store_is_located_by_precedence_and_never_by_a_checkout() {
    let shop = Shop::new();
    let (home, profile) = (shop.base.join("home"), shop.base.join("profile"));
    let agent = profile.join(".pi/agent");
    fs::create_dir_all(&agent).expect("a profile");
    let env = |dir: Option<&str>| {
        let (home, profile) = (home.clone(), profile.clone());
        let dir = dir.map(OsString::from);
        move |name: &str| match name {
            "HOME" => Some(home.clone().into_os_string()),
            "USERPROFILE" => Some(profile.clone().into_os_string()),
            "PI_CODING_AGENT_SESSION_DIR" => dir.clone(),
            _ => None,
        }
    };
    let store = locate(&env(None));
    assert_eq!(
        (store.root, store.storage_dir),
        (agent.join("sessions"), None)
    );
    let settings = |dir: &str| {
        let text = serde_json::json!({ "sessionDir": dir }).to_string();
        fs::write(agent.join("settings.json"), text).expect("written");
    };
    settings("relative/dir");
    assert_eq!(locate(&env(None)).source, Source::Default);
    settings("~/mine");
    let store = locate(&env(None));
    assert_eq!(
        (store.source, &store.root),
        (Source::Settings, &profile.join("mine"))
    );
    assert_eq!(store.storage_dir, Some(profile.join("mine")));
    assert_eq!(locate(&env(Some("relative"))).source, Source::Settings);
    assert_eq!(locate(&env(Some(" "))).source, Source::Settings);
    let store = locate(&env(Some("~/theirs/")));
    assert_eq!(
        (store.source, store.root),
        (Source::Environment, profile.join("theirs"))
    );

    fs::create_dir(shop.lane.join(".pi")).expect("a folder");
    assert_eq!(checkout_override(&shop.lane), None);
    fs::write(
        shop.lane.join(".pi/settings.json"),
        r#"{"sessionDir":"/evil"}"#,
    )
    .expect("written");
    assert_eq!(checkout_override(&shop.lane).as_deref(), Some("/evil"));
    assert_eq!(locate(&env(None)).source, Source::Settings);
}

#[test]
fn creation_targets_differ_by_lane_and_keys_by_spelling_alone() {
    let root = Path::new("/store");
    let one = creation_target(root, Path::new("/home/dev/app"));
    assert_eq!(one, creation_target(root, Path::new("/home/dev/app/")));
    assert_eq!(
        one,
        creation_target(root, Path::new("/home/dev/./x/../app"))
    );
    assert_ne!(one, creation_target(root, Path::new("/home/dev/app2")));
    let name = one
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let hex = name
        .strip_prefix(".ade-session-create-")
        .expect("the prefix");
    assert!(
        hex.len() == 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{hex}"
    );
    // NFC and NFD are two names on Linux, and stay two.
    assert_ne!(
        path_key(Path::new("/caf\u{e9}")),
        path_key(Path::new("/cafe\u{301}"))
    );
}
