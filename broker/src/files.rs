//! Private files and folders: 0600 and 0700 whatever the umask, replaced whole
//! or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of every file that ade makes.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Mode of every folder that ade makes.
pub(crate) const DIR_MODE: u32 = 0o700;

/// Makes a folder, and those above it that are missing, with mode 0700. A
/// folder that exists is left as it is.
pub(crate) fn make_private_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(DIR_MODE).create(path) {
        // The umask took bits away, perhaps even ours.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(DIR_MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(parent) if parent != path && parent != Path::new("") => {
                make_private_dir(parent)?;
                make_private_dir(path)
            }
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
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

/// Removes a file; that it is not there is not an error.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
