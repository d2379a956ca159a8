//! Programs that load a provider's SDK, as text to be unpacked and run.

/// Files of a host: path below the folder that they are unpacked into, and
/// text. The first one is started.
pub type HostFiles = &'static [(&'static str, &'static str)];

macro_rules! host_files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../hosts/", $path)))),*]
    };
}

/// The host for Pi: scripts for Node.
pub const PI_HOST: HostFiles = host_files![
    "pi.mjs",
    "lib/cards.mjs",
    "lib/wire.mjs",
    "pi/delivery.mjs",
    "pi/events.mjs",
    "pi/images.mjs",
    "pi/models.mjs",
    "pi/package.mjs",
    "pi/requests.mjs",
    "pi/sessions.mjs",
    "pi/tools.mjs",
    "pi/ui.mjs",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A file that is added to the folder and forgotten here would be missing
    /// on every user's machine.
    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts");
        let mut on_disk = BTreeSet::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("the hosts folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let relative = path.strip_prefix(&root).expect("below the folder");
                    on_disk.insert(relative.display().to_string());
                }
            }
        }
        let embedded: BTreeSet<String> = super::PI_HOST
            .iter()
            .map(|(path, _)| (*path).to_owned())
            .collect();
        assert_eq!(embedded, on_disk);
    }
}
