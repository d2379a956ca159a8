//! Case F10: replacements that cannot be had.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ade_tests::ade::{Ade, executable};
use ade_tests::rpc::text_of;
use ade_tests::turns::of_type;

use super::status;

/// A host that is the scripted agent at each start but the second one, at which
/// it does something else. At the first start it does something before.
fn breaking(first: &str, second: &str) -> (Ade, String) {
    let ade = Ade::new();
    let host = ade.root().join("host.sh");
    let text = format!(
        "#!/bin/bash\n\
         n=$(cat \"$0.n\" 2>/dev/null || echo 0)\n\
         echo $((n + 1)) > \"$0.n\"\n\
         [ \"$n\" != 1 ] || {{ {second}; }}\n\
         [ \"$n\" != 0 ] || {{ {first}; }}\n\
         export ADE_HOST_PARENT=$PPID\n\
         exec -a ade-host {} --scripted\n",
        executable().display()
    );
    std::fs::write(&host, text).expect("the host");
    std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o755)).expect("the mode");
    let config = format!(
        "[providers.scripted]\nhost = {:?}\n",
        host.display().to_string()
    );
    let mut ade = ade.with_config(&config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.scripted_chat(&mut rpc, 500);
    (ade, chat)
}

/// The replacement can't be had: that was the one recycle. `mend` makes the host
/// work again where it does not by itself.
fn not_replaced(first: &str, second: &str, reason: &str, mend: impl Fn(&Path)) {
    let (ade, chat) = breaking(first, second);
    let events = ade.turn(&chat, "!hang");
    assert_eq!(status(&events), "failed");
    let errors = of_type(&events, "error");
    assert_eq!(errors.len(), 1, "{events:?}");
    let message = errors[0]["message"].as_str().expect("a text");
    assert!(message.contains("sent nothing for 0.5 s"), "{message}");
    assert!(message.contains(reason), "{message}");
    assert!(ade.births(&chat) <= 2, "no loop: {}", ade.births(&chat));
    assert_eq!(
        of_type(&events, "notice").len(),
        0,
        "nothing was sent again"
    );
    mend(&ade.root().join("host.sh"));
    let events = ade.turn(&chat, "next");
    assert_eq!(text_of(&events), "You said: next", "the next message works");
}

#[test]
fn f10_a_replacement_that_ends_at_its_start_is_the_end() {
    not_replaced(":", "echo broken >&2; exit 1", "exit code 1", |_| {});
}

#[test]
fn f10_a_replacement_whose_program_is_not_there_is_the_end() {
    // The file is there and what would run it is not: the spawn says ENOENT.
    let gone = "sed -i '1s|.*|#!/no/such/shell|' \"$0\"";
    not_replaced(gone, ":", "No such file", |host| {
        let text = std::fs::read_to_string(host).expect("the host");
        let mended = text.replacen("#!/no/such/shell", "#!/bin/bash", 1);
        std::fs::write(host, mended).expect("the host");
        std::fs::write(host.with_extension("sh.n"), "2").expect("the count");
    });
}

#[test]
fn f10_a_replacement_that_cannot_be_executed_is_the_end() {
    not_replaced("chmod -x \"$0\"", ":", "cannot be executed", |host| {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(host, mode).expect("the mode");
        std::fs::write(host.with_extension("sh.n"), "2").expect("the count");
    });
}

#[test]
fn f10_a_replacement_of_another_protocol_version_is_the_end() {
    let frame = r#"{"protocolVersion":3,"type":"lifecycle","event":"initializing"}"#;
    let other = format!("echo '{frame}'; exec sleep 60");
    not_replaced(":", &other, "version 3", |_| {});
}
