//! Private files and folders: 0600 and 0700 whatever the umask, replaced whole
//! or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::limits;

/// Mode of every file that ade makes.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Mode of every folder that ade makes.
pub(crate) const DIR_MODE: u32 = 0o700;

/// Makes a folder, and those above it that are missing, with mode 0700. A
/// folder that exists is left as it is.
///
/// # Errors
/// Also when something stands above it in which nothing can be made: a link to
/// nowhere is named.
pub(crate) fn make_private_dir(path: &Path) -> io::Result<()> {
    match create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        made => return made,
    }
    if let Some(dangling) = path.ancestors().skip(1).find(|above| is_dangling(above)) {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "{} cannot be made: {} is a link to nowhere; make what it names, or remove it",
                path.display(),
                dangling.display()
            ),
        ));
    }
    if let Some(parent) = path.parent()
        && parent != Path::new("")
        && !parent.exists()
    {
        make_private_dir(parent)?;
    }
    // Once only: where the folder above is there and yet nothing can be made in
    // it, trying again would not end.
    create_dir(path)
}

fn create_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(DIR_MODE).create(path) {
        // The umask took bits away, perhaps even ours.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(DIR_MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_dangling(path) => {
            Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!(
                    "{} is a link to nowhere; make what it names, or remove it",
                    path.display()
                ),
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A symbolic link whose target does not exist.
pub(crate) fn is_dangling(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

/// Opens with `options` and makes the mode 0600, whatever the umask was and
/// whoever made the file.
pub(crate) fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(FILE_MODE).open(path)?;
    if file.metadata()?.permissions().mode() & 0o777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Opens a file to be read, and nothing else that may have its name: a pipe would
/// keep whoever opens it waiting.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let wait_for_nobody = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(wait_for_nobody)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok(file)
}

/// Replaces a file whole: readers see the old content or the new one, also
/// after a crash of this process. There is no flush, so a power cut may leave an
/// empty file. On an error the old file is untouched and nothing is left beside
/// it.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let staging = staging_name(path)?;
    let written = open_private(&staging, OpenOptions::new().write(true).create_new(true))
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&staging, path));
    if written.is_err() {
        // Nothing better can be done about a leftover than to try.
        let _ = fs::remove_file(&staging);
    }
    written
}

/// The text that every staging name of [`replace`] holds.
pub(crate) const STAGING: &str = ".new-";

fn staging_name(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut staging = name.to_owned();
    staging.push(format!("{STAGING}{}", uuid::Uuid::new_v4().simple()));
    Ok(path.with_file_name(staging))
}

/// What to do about a place that takes no file; `None` when the error does not
/// tell.
pub(crate) fn remedy(path: &Path, source: &io::Error) -> Option<String> {
    use io::ErrorKind::{
        InvalidData, IsADirectory, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    if let Some(hint) = limits::hint_for(source) {
        return Some(hint);
    }
    let path = path.display();
    match source.kind() {
        StorageFull => Some(format!(
            "make room, in bytes and in inodes, on the file system of {path}"
        )),
        QuotaExceeded => Some(format!("your quota is used up: make room where {path} is")),
        ReadOnlyFilesystem => Some(format!(
            "the file system of {path} is mounted read-only: mount it writable, or set ADE_HOME to \
             a folder elsewhere"
        )),
        io::ErrorKind::FileTooLarge => Some(
            "the limit of file sizes is too low: raise it (`ulimit -f`) and try again".to_owned(),
        ),
        IsADirectory => Some(format!("a file belongs there: move the folder {path} away")),
        InvalidData => Some(format!(
            "{path} is not text in UTF-8: save it as that, or move it away"
        )),
        _ => None,
    }
}

/// Removes a file; that it is not there is not an error.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_private_with_those_above() {
        let base = tempfile::tempdir().expect("a folder");
        let path = base.path().join("a/b/c");
        make_private_dir(&path).expect("made");
        make_private_dir(&path).expect("left as it is");
        for made in ["a", "a/b", "a/b/c"] {
            let mode = fs::metadata(base.path().join(made)).expect("there");
            assert_eq!(mode.permissions().mode() & 0o777, DIR_MODE, "{made}");
        }
    }

    #[test]
    fn a_link_to_nowhere_is_an_error_that_names_it() {
        let base = tempfile::tempdir().expect("a folder");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path().join("nowhere"), &link).expect("linked");
        for path in [link.clone(), link.join("home"), link.join("home/run")] {
            let error = make_private_dir(&path).expect_err("no place").to_string();
            assert!(
                error.contains(&format!("{} is a link to nowhere", link.display())),
                "{error}"
            );
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn where_nothing_can_be_made_the_error_ends_it() {
        let error = make_private_dir(Path::new("/proc/ade-nothing/here")).expect_err("no place");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
