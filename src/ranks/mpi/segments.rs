//! The shared memory of the ranks on one machine, which Open MPI keeps as files: a killed process
//! leaves its file behind. Once all ranks have mapped the files, the names are not needed.

/// Open MPI's names of the files: version 5, and version 4.
const NAMES: [&str; 2] = ["sm_segment.", "vader_segment."];

/// Removes the names of files that this process has mapped; the memory is freed with the last
/// process.
pub(super) fn unlink() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for path in named(&maps) {
        // Another rank may have removed the file already.
        let _ = std::fs::remove_file(path);
    }
}

fn named(maps: &str) -> impl Iterator<Item = &str> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.filter(|path| {
        NAMES.iter().any(|name| path.rsplit('/').next().is_some_and(|f| f.starts_with(name)))
    })
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_and_is_open_mpis_is_found_and_nothing_else() {
        let maps = "7f0-7f1 rw-s 00000000 00:17 9    /dev/shm/sm_segment.vm.0.afb90001.0\n\
                    7f1-7f2 r--p 00000000 08:01 7    /usr/lib/libsm_segment.so\n\
                    7f2-7f3 rw-s 00000000 00:17 8    /dev/shm/another.sm_segment.1\n\
                    7f3-7f4 rw-p 00000000 00:00 0    [heap]\n\
                    7f4-7f5 rw-s 00000000 00:17 5    /dev/shm/sm_segment.vm.0.1.1 (deleted)\n";
        let found: Vec<&str> = named(maps).collect();
        assert_eq!(
            found,
            ["/dev/shm/sm_segment.vm.0.afb90001.0", "/dev/shm/sm_segment.vm.0.1.1 (deleted)"]
        );
    }
}
