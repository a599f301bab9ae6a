//! What zlib made small.

use flate2::{Decompress, FlushDecompress, Status};

use super::blocks::Blocks;

/// The largest object that is read here, in bytes. Commits are small; what is not is left to git.
pub(super) const LARGEST: u64 = 4 << 20;

/// What is packed from here on, of which the length is known.
pub(super) fn inflate(from: &mut Blocks, mut at: u64, length: u64, tool: &mut Decompress) -> Option<Vec<u8>> {
    if length > LARGEST {
        return None;
    }
    tool.reset(true);
    // One byte more, to see that there is none.
    let mut out = Vec::with_capacity(usize::try_from(length).ok()? + 1);
    loop {
        // All of it may have been taken in, and not all given out.
        let input = from.from(at).unwrap_or_default();
        let (read, written) = (tool.total_in(), tool.total_out());
        let status = tool.decompress_vec(input, &mut out, FlushDecompress::None).ok()?;
        at += tool.total_in() - read;
        match status {
            Status::StreamEnd => break,
            _ if out.len() as u64 > length => return None,
            _ if (tool.total_in(), tool.total_out()) == (read, written) => return None,
            _ => {}
        }
    }
    (out.len() as u64 == length).then_some(out)
}

/// A whole loose object: its head, which tells its kind and length, and what it holds.
pub(super) fn inflate_loose(from: &mut Blocks, tool: &mut Decompress) -> Option<(Vec<u8>, Vec<u8>)> {
    tool.reset(true);
    // `commit 1234` and a zero byte: the longest head is shorter than this.
    let mut head = Vec::with_capacity(64);
    let mut at = 0;
    let end = loop {
        let input = from.from(at).unwrap_or_default();
        let before = (tool.total_in(), tool.total_out());
        let status = tool.decompress_vec(input, &mut head, FlushDecompress::None).ok()?;
        at += tool.total_in() - before.0;
        if let Some(end) = head.iter().position(|byte| *byte == 0) {
            break end;
        }
        if status == Status::StreamEnd
            || head.len() == head.capacity()
            || before == (tool.total_in(), tool.total_out())
        {
            return None;
        }
    };
    let mut content = head.split_off(end + 1);
    head.truncate(end);
    let digits = head.rsplit(|byte| *byte == b' ').next()?;
    let length: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    if length > LARGEST {
        return None;
    }
    content.reserve_exact((usize::try_from(length).ok()? + 1).saturating_sub(content.len()));
    // What a short one holds has come with its head, and its stream may have ended with it.
    while (content.len() as u64) < length {
        let input = from.from(at).unwrap_or_default();
        let before = (tool.total_in(), tool.total_out());
        let status = tool.decompress_vec(input, &mut content, FlushDecompress::None).ok()?;
        at += tool.total_in() - before.0;
        if status == Status::StreamEnd || before == (tool.total_in(), tool.total_out()) {
            break;
        }
    }
    (content.len() as u64 == length).then_some((head, content))
}
