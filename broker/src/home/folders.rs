//! One folder of a home: made, ours, private, writable.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::HomeError;
use crate::files::{self, DIR_MODE};

/// Makes sure that `path` is a writable folder of ours with mode 0700.
pub(super) fn own_folder(path: &Path) -> Result<(), HomeError> {
    let prepare = |source| HomeError::Prepare {
        path: path.to_owned(),
        source,
    };
    if let Some(link) = path.ancestors().find(|path| files::is_dangling(path)) {
        return Err(HomeError::LinkToNowhere {
            path: path.to_owned(),
            link: link.to_owned(),
        });
    }
    match files::make_private_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(HomeError::NotAFolder {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(prepare(error)),
    }
    let mode = is_ours(path)?;
    if mode != DIR_MODE {
        fs::set_permissions(path, Permissions::from_mode(DIR_MODE)).map_err(prepare)?;
    }
    is_writable(path)
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether a folder that is missing could be made where it belongs.
pub(super) fn could_be_made(path: &Path) -> Result<(), HomeError> {
    for above in path.ancestors() {
        match fs::symlink_metadata(above) {
            Ok(_) if files::is_dangling(above) => {
                return Err(HomeError::LinkToNowhere {
                    path: path.to_owned(),
                    link: above.to_owned(),
                });
            }
            Ok(_) if !above.is_dir() => {
                return Err(HomeError::NotAFolder {
                    path: above.to_owned(),
                });
            }
            Ok(_) => return is_writable(above),
            Err(error) if is_absent(&error) => {}
            Err(source) => {
                return Err(HomeError::Prepare {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
    Ok(())
}

/// Whether `path` is a folder of ours; gives its mode.
pub(super) fn is_ours(path: &Path) -> Result<u32, HomeError> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        // A symbolic link that leads nowhere also "exists already".
        Err(error) if is_absent(&error) => {
            return Err(HomeError::NotAFolder {
                path: path.to_owned(),
            });
        }
        Err(source) => {
            return Err(HomeError::Prepare {
                path: path.to_owned(),
                source,
            });
        }
    };
    if !found.is_dir() {
        return Err(HomeError::NotAFolder {
            path: path.to_owned(),
        });
    }
    let user = nix::unistd::geteuid().as_raw();
    if found.uid() != user {
        return Err(HomeError::NotOurs {
            path: path.to_owned(),
            owner: found.uid(),
            user,
        });
    }
    Ok(found.permissions().mode() & 0o7777)
}

pub(super) fn is_writable(path: &Path) -> Result<(), HomeError> {
    rustix::fs::access(
        path,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .map_err(|errno| HomeError::NotWritable {
        path: path.to_owned(),
        source: errno.into(),
    })
}
