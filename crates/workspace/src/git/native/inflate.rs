//! Decompresses objects.

use flate2::{Decompress, FlushDecompress, Status};

use super::block_cache::CachedFile;

/// Limit of an object, in bytes. Larger ones are left to git.
pub(super) const MAX_OBJECT_BYTES: u64 = 4 << 20;

/// Decompresses the data at this offset to a known length.
pub(super) fn inflate(
    from: &mut CachedFile,
    mut at: u64,
    length: u64,
    tool: &mut Decompress,
) -> Option<Vec<u8>> {
    if length > MAX_OBJECT_BYTES {
        return None;
    }
    tool.reset(true);
    // One byte more, to detect longer data.
    let mut out = Vec::with_capacity(usize::try_from(length).ok()? + 1);
    loop {
        // The decompressor may still have output after it has consumed all input.
        let input = from.bytes_at(at).unwrap_or_default();
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

/// A loose object: its header with kind and length, and its content.
pub(super) fn inflate_loose(from: &mut CachedFile, tool: &mut Decompress) -> Option<(Vec<u8>, Vec<u8>)> {
    tool.reset(true);
    // The longest header, `commit 1234` with a zero byte, is shorter than this.
    let mut head = Vec::with_capacity(64);
    let mut at = 0;
    let end = loop {
        let input = from.bytes_at(at).unwrap_or_default();
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
    if length > MAX_OBJECT_BYTES {
        return None;
    }
    content.reserve_exact((usize::try_from(length).ok()? + 1).saturating_sub(content.len()));
    // A short content is complete with its header, and the stream may have ended.
    while (content.len() as u64) < length {
        let input = from.bytes_at(at).unwrap_or_default();
        let before = (tool.total_in(), tool.total_out());
        let status = tool.decompress_vec(input, &mut content, FlushDecompress::None).ok()?;
        at += tool.total_in() - before.0;
        if status == Status::StreamEnd || before == (tool.total_in(), tool.total_out()) {
            break;
        }
    }
    (content.len() as u64 == length).then_some((head, content))
}
