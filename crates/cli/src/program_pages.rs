//! Returns the pages of the program that only its start has used.
//!
//! A start parses the configuration, migrates the store and builds every route, and so maps most of the program's code. These
//! pages are clean copies of the file, so that the system could take them back by itself, but until it does they count as the
//! server's memory. What the server uses afterwards is mapped again from the system's cache, at the cost of a minor page fault.

use std::{fs, io, path::Path};

/// Unmaps the read-only pages of the running program. An error is no reason to stop: it costs only memory.
pub(crate) fn release() {
    if let Err(error) = release_mapped() {
        tracing::debug!(%error, "the pages of the program that only the start has used stay mapped");
    }
}

fn release_mapped() -> io::Result<()> {
    let program = fs::read_link("/proc/self/exe")?;
    for mapping in clean_mappings(&fs::read_to_string("/proc/self/smaps")?, &program) {
        // SAFETY: nothing can write to these pages, and none differs from its file, so whatever reads them finds the same bytes.
        #[expect(
            unsafe_code,
            reason = "rustix has no safe function for it, because other mappings would lose their content"
        )]
        unsafe {
            rustix::mm::madvise(mapping.start as *mut _, mapping.len, rustix::mm::Advice::LinuxDontNeed)?;
        }
    }
    Ok(())
}

/// A part of the process's address space.
#[derive(Debug, PartialEq)]
struct Mapping {
    start: usize,
    len: usize,
}

/// The mappings of the program's file that are read-only and have no page of their own. The part that the loader has relocated is
/// read-only, too, but it differs from the file.
fn clean_mappings(smaps: &str, program: &Path) -> Vec<Mapping> {
    let mut found = vec![];
    let mut current = None;
    for line in smaps.lines() {
        if let Some(mapping) = read_only_mapping(line, program) {
            current = mapping;
        } else if let Some(own) = line.strip_prefix("Anonymous:")
            && let Some(mapping) = current.take()
            && own.trim() == "0 kB"
        {
            found.push(mapping);
        }
    }
    found
}

/// `Some` if the line begins a mapping, with the mapping if it is one of the program's file that cannot be written.
fn read_only_mapping(line: &str, program: &Path) -> Option<Option<Mapping>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let is_read_only = matches!(fields.next()?, "r--p" | "r-xp");
    // The offset, the device and the inode are in between. The path is the rest of the line.
    let path = line.find('/').map(|at| Path::new(&line[at..]));
    let is_ours = is_read_only && path == Some(program);
    Some(is_ours.then(|| Mapping { start, len: end.saturating_sub(start) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5500-5700 r--p 00000000 fe:00 12 /opt/os tler/ostler
Rss:                   8 kB
Anonymous:             0 kB
5700-5900 r-xp 00002000 fe:00 12 /opt/os tler/ostler
Anonymous:             0 kB
5900-5a00 r--p 00004000 fe:00 12 /opt/os tler/ostler
Anonymous:             4 kB
5a00-5b00 rw-p 00005000 fe:00 12 /opt/os tler/ostler
Anonymous:             0 kB
6000-6100 rw-p 00000000 00:00 0
Anonymous:             0 kB
7000-7100 r-xp 00000000 fe:00 13 /usr/lib/libc.so.6
Anonymous:             0 kB
";

    #[test]
    fn only_unchanged_pages_of_the_program_are_returned() {
        let expected = [Mapping { start: 0x5500, len: 0x200 }, Mapping { start: 0x5700, len: 0x200 }];
        assert_eq!(clean_mappings(SMAPS, Path::new("/opt/os tler/ostler")), expected);
        assert_eq!(clean_mappings("nonsense\n", Path::new("/opt/ostler")), []);
    }

    #[test]
    fn the_program_continues_after_its_pages_were_returned() {
        let before = resident_kib();
        release_mapped().unwrap();
        assert!(resident_kib() < before);
    }

    /// Resident pages of files, of which a test program has megabytes.
    fn resident_kib() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    }
}
