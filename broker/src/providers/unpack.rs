//! Host scripts on the disk: `run/hosts/<hash>/`, one folder a version.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::files;
use crate::home::Home;

/// Files of a host: path below the folder that they are unpacked into, and
/// text. The first one is started.
pub type HostFiles = &'static [(&'static str, &'static str)];

/// Makes sure that the files of a host are on the disk, whole and as they are
/// here, and gives the path of the first one. Several brokers of several
/// versions may do so at once: each version has a folder of its own, and each
/// file is replaced whole.
///
/// # Errors
/// A file cannot be read or written, or there is none.
pub fn unpack_host(home: &Home, host: HostFiles) -> io::Result<PathBuf> {
    let (first, _) = host.first().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = home.hosts_dir().join(name_of(host));
    for (name, text) in host {
        let path = folder.join(name);
        if !holds(&path, text) {
            files::make_private_dir(path.parent().unwrap_or(&folder))?;
            files::replace(&path, text.as_bytes())?;
        }
    }
    Ok(folder.join(first))
}

fn holds(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|content| content == text.as_bytes())
}

/// Sixteen hexadecimal digits that stand for names and texts.
fn name_of(host: HostFiles) -> String {
    let mut hash = Sha256::new();
    for (name, text) in host {
        for part in [name, text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_host_is_unpacked_whole_and_repaired() {
        let folder = tempfile::TempDir::new().unwrap();
        let home = Home::at(folder.path().to_owned(), None)
            .unwrap()
            .prepare()
            .unwrap();
        let host: HostFiles = &[("pi.mjs", "import './lib/a.mjs'"), ("lib/a.mjs", "1")];
        let script = unpack_host(&home, host).unwrap();
        assert_eq!(script.file_name().unwrap(), "pi.mjs");
        assert_eq!(
            fs::metadata(&script).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let other = script.parent().unwrap().join("lib/a.mjs");
        fs::write(&other, "torn").unwrap();
        let before = fs::metadata(&script).unwrap().modified().unwrap();
        assert_eq!(unpack_host(&home, host).unwrap(), script);
        assert_eq!(fs::read_to_string(&other).unwrap(), "1");
        assert_eq!(
            fs::metadata(&script).unwrap().modified().unwrap(),
            before,
            "left alone"
        );
        let newer: HostFiles = &[("pi.mjs", "import './lib/a.mjs'"), ("lib/a.mjs", "2")];
        assert_ne!(unpack_host(&home, newer).unwrap(), script);
        assert!(script.exists());
        assert!(unpack_host(&home, &[]).is_err());
    }
}
