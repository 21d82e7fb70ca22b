//! Maps a file by reading the HDF5 format directly, for the part of the format that simulations write.
//!
//! Sources: the HDF5 File Format Specification 3.0, and the decoders of the HDF5 library for points that the
//! specification leaves open. The parser supports superblocks 0 to 3, object headers 1 and 2, groups as symbol
//! tables, as compact links and as dense links, contiguous data, and chunks with each of the six kinds of index. The
//! parser leaves files with shared messages in heaps, links longer than 4 KiB, and split files to the library
//! ([`H5Error::NotClassic`]). Checksums of metadata are not compared, because a wrong map is detected later.
//!
//! Limits: every examined entry and every copied byte is charged to a budget. The budget depends on the length of the
//! file. Therefore the parser stops even if pointers form a cycle. The levels of a B-tree must decrease towards the
//! leaves, so the depth of the recursion is at most the number of levels. The links of a file take at most
//! [`LINKS_BYTES_MAX`] of memory. Large amounts of metadata are read in the order of their addresses.

mod chunks;
mod dense;
mod parser;
mod tree2;

use super::datatype::{self, Parsed};
use super::reader::Reader;
use super::{DATASETS_MAX, FileMap, H5Error, MapInput, MapSource, PipelineFilter, superblock_offset};
use chunks::Index;
use mcrengine::header::DIMENSIONS_MAX;
use parser::{DatatypeMessage, Fields, LINKS_BYTES_MAX, Link, Parser, not_classic};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// The parser for the classic part of the HDF5 format.
pub struct Classic;

impl MapSource for Classic {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        let bytes = input.bytes;
        let base = superblock_offset(input.file, bytes, input.whole)?.ok_or(H5Error::NotHdf5)?;
        let mut parser = Parser {
            reader: Reader::new(input)?,
            base,
            bytes,
            offset_width: 8,
            length_width: 8,
            steps_left: bytes + 4096,
            committed: HashMap::new(),
            in_committed: false,
            chunks: 0,
            links_bytes_left: LINKS_BYTES_MAX,
            variables: Vec::new(),
        };
        let root = parser.superblock()?;
        parser.walk(root)?;
        FileMap::finish(parser.variables, bytes)
    }
}

/// Maximum length of a link's name, in bytes.
const NAME_MAX: usize = 32 << 10;
/// Maximum length of a dataset's path, in bytes.
const PATH_MAX_BYTES: usize = 64 << 10;

/// An object to which a link leads. The object's name is not yet known.
enum Node {
    /// The object is read later, or it has neither data nor links.
    Known,
    Group(Vec<Link>),
    /// Indices in [`Parser::variables`].
    Dataset(Range<usize>),
}

impl Node {
    fn links(&self) -> &[Link] {
        match self {
            Self::Group(links) => links,
            Self::Known | Self::Dataset(_) => &[],
        }
    }
}

/// The parts of an object header that the parser uses.
#[derive(Default)]
struct Object {
    dims: Option<Dims>,
    datatype: Option<DatatypeMessage>,
    layout: Option<Layout>,
    pipeline: Vec<PipelineFilter>,
    external: bool,
    symbol_table: Option<(u64, u64)>,
    /// Address of the heap of links, and address of the B-tree of their names.
    dense: Option<(u64, u64)>,
    links: Vec<Link>,
}

/// The current dimensions of a dataset, and their maximum.
struct Dims {
    now: Vec<u64>,
    most: Vec<u64>,
}

/// A hard link in a symbol table: offset of the name in its heap, and address of the object.
type Symbol = (u64, u64);

enum Layout {
    /// The data is in the object header, or not in this file.
    Elsewhere,
    /// Contiguous data. `bytes` is `None` in old messages. In this case, the length is calculated from the dataspace.
    Contiguous { address: u64, bytes: Option<u64> },
    /// Chunks. `dims` has the dimensions of a chunk, followed by the length of an element in bytes.
    Chunked { index: Index, dims: Vec<u64> },
}

impl Parser<'_> {
    /// Finds every object to which hard links lead. Then gives the datasets the names that the library gives to
    /// datasets.
    ///
    /// The objects of one depth are read in the order of their addresses. In the order of the names, the objects of a
    /// large group would be read from scattered pages.
    fn walk(&mut self, root: u64) -> Result<(), H5Error> {
        let mut found = HashMap::from([(root, Node::Known)]);
        let mut depth = vec![root];
        while !depth.is_empty() {
            depth.sort_unstable();
            let mut below = Vec::new();
            for address in depth {
                let object = self.object(address)?;
                let node = match object {
                    Object { dims: Some(_), datatype: Some(_), .. } if address != root => {
                        let from = self.variables.len();
                        self.dataset(object, address)?;
                        Node::Dataset(from..self.variables.len())
                    }
                    _ => Node::Group(self.links(object)?),
                };
                for (_, child) in node.links() {
                    if let Entry::Vacant(place) = found.entry(*child) {
                        place.insert(Node::Known);
                        below.push(*child);
                    }
                }
                found.insert(address, node);
            }
            depth = below;
        }
        self.name(root, found)
    }

    /// Names each object, depth first and in the order of names. An object with several links gets the first name.
    fn name(&mut self, root: u64, mut found: HashMap<u64, Node>) -> Result<(), H5Error> {
        let mut path = String::new();
        // For each open group: the length of its path, and the links of the group that are not yet followed.
        let mut open = Vec::new();
        if let Some(Node::Group(links)) = found.remove(&root) {
            open.push((0, links.into_iter()));
        }
        while let Some((path_len, links)) = open.last_mut() {
            let Some((name, address)) = links.next() else {
                open.pop();
                continue;
            };
            let Some(node) = found.remove(&address) else { continue };
            path.truncate(*path_len);
            path.push('/');
            super::push_name(&mut path, &name);
            if path.len() > PATH_MAX_BYTES {
                return Err(not_classic("a path of more than 64 KiB", address));
            }
            self.pay(path.len(), address)?;
            match node {
                Node::Dataset(variables) => {
                    self.variables[variables].iter_mut().for_each(|variable| variable.path = path.as_str().into());
                }
                Node::Group(links) => open.push((path.len(), links.into_iter())),
                Node::Known => {}
            }
        }
        Ok(())
    }

    /// The hard links of a group, sorted by name.
    fn links(&mut self, object: Object) -> Result<Vec<Link>, H5Error> {
        let mut links = object.links;
        for (name, at) in &links {
            self.keep(name.len(), *at)?;
        }
        if let Some((heap, names)) = object.dense {
            self.dense_links(heap, names, &mut links)?;
        }
        if let Some((tree, heap)) = object.symbol_table {
            let (names, names_len) = self.local_heap(heap)?;
            let mut symbols = Vec::new();
            self.group_node(tree, None, &mut symbols)?;
            // The symbols are stored in the order of the names. Here the symbols are sorted by the offsets of the
            // names in the heap, because reading the names in this order is faster.
            symbols.sort_unstable();
            for (name, object) in symbols {
                let name = self.heap_name(names, names_len, name)?;
                self.keep(name.len(), object)?;
                links.push((name, object));
            }
        }
        links.sort_unstable();
        links.shrink_to_fit();
        Ok(links)
    }

    /// Maps a dataset. The dataset's name is not yet known.
    fn dataset(&mut self, object: Object, address: u64) -> Result<(), H5Error> {
        let (Some(dims), Some((datatype, width)), Some(layout)) = (object.dims, object.datatype, object.layout) else {
            return Ok(());
        };
        let Parsed::Data(datatype) = datatype else { return Ok(()) };
        if self.variables.len() >= DATASETS_MAX {
            return Err(H5Error::TooMany { what: "datasets", limit: DATASETS_MAX as u64 });
        }
        let product = |dims: &[u64]| dims.iter().fold(u64::from(width), |n, &d| n.saturating_mul(d));
        match layout {
            Layout::Contiguous { address, bytes } if !object.external => {
                let bytes = bytes.unwrap_or_else(|| product(&dims.now));
                let offset = address.saturating_add(self.base);
                self.variables.extend(super::contiguous("", &datatype, &dims.now, offset, bytes));
            }
            Layout::Chunked { index, dims: chunk_dims } => {
                let Some((_, chunk_dims)) = chunk_dims.split_last().filter(|(_, c)| c.len() == dims.now.len()) else {
                    return Err(not_classic("chunks with another number of dimensions", address));
                };
                let raw_bytes = product(chunk_dims);
                let chunks = self.chunks(&index, &dims.now, &dims.most, chunk_dims, raw_bytes)?;
                let found = super::chunked("", &datatype, &dims.now, chunk_dims, raw_bytes, &object.pipeline, &chunks);
                self.variables.extend(found);
            }
            Layout::Contiguous { .. } | Layout::Elsewhere => {}
        }
        Ok(())
    }

    /// Reads an object header with all its continuations.
    fn object(&mut self, address: u64) -> Result<Object, H5Error> {
        let mut object = Object::default();
        let mut more = VecDeque::new();
        let prefix = self.piece(address, 16)?;
        let mut fields = Fields { bytes: &prefix, at: address };
        let (version, flags) = if prefix.starts_with(b"OHDR") {
            fields.take(4)?;
            let (version, flags) = (fields.u8()?, fields.u8()?);
            let times = if flags & 0x20 != 0 { 16 } else { 0 };
            let phase_change = if flags & 0x10 != 0 { 4 } else { 0 };
            let at = address.saturating_add(6 + times + phase_change);
            let len_width = 1 << (flags & 3);
            let len = Fields { bytes: &self.piece(at, len_width)?, at }.number(len_width)?;
            more.push_back((at.saturating_add(len_width as u64), len));
            (version, flags)
        } else {
            let version = fields.u8()?;
            fields.take(7)?;
            more.push_back((address.saturating_add(16), fields.number(4)?));
            (version, 0)
        };
        if version != 1 + u8::from(prefix.starts_with(b"OHDR")) {
            return Err(not_classic("an object header of an unknown version", address));
        }
        let mut first = true;
        while let Some((at, len)) = more.pop_front() {
            self.pay(0, at)?;
            let len = usize::try_from(len).map_err(|_| not_classic("a piece of a header that is too long", at))?;
            let bytes = self.piece(at, len)?;
            let mut messages = &bytes[..];
            if version == 2 && !first {
                let inner = messages.strip_prefix(b"OCHK").and_then(|m| m.len().checked_sub(4).map(|n| &m[..n]));
                messages = inner.ok_or_else(|| not_classic("a continuation without its signature", at))?;
            }
            first = false;
            self.messages(version, flags, Fields { bytes: messages, at }, &mut object, &mut more)?;
        }
        Ok(object)
    }

    fn messages(
        &mut self,
        version: u8,
        header_flags: u8,
        mut fields: Fields<'_>,
        object: &mut Object,
        more: &mut VecDeque<(u64, u64)>,
    ) -> Result<(), H5Error> {
        let head_len = match version {
            1 => 8,
            _ if header_flags & 4 != 0 => 6,
            _ => 4,
        };
        while fields.bytes.len() >= head_len {
            self.pay(0, fields.at)?;
            let mut head = Fields { bytes: fields.take(head_len)?, at: fields.at };
            let kind = if version == 1 { head.u16()? } else { u16::from(head.u8()?) };
            let len = head.u16()?;
            let flags = head.u8()?;
            let mut body = Fields { bytes: fields.take(usize::from(len))?, at: fields.at };
            let shared = flags & 2 != 0;
            match kind {
                0x01 | 0x02 | 0x08 | 0x0b if shared => return Err(not_classic("a shared message", fields.at)),
                0x01 => object.dims = Some(self.dataspace(&mut body)?),
                0x02 => object.dense = self.link_info(&mut body)?,
                0x03 if shared => object.datatype = Some(self.committed_datatype(&mut body)?),
                0x03 => object.datatype = Some(datatype_message(&body)?),
                0x06 => object.links.extend(self.link(&mut body)?),
                0x07 => object.external = true,
                0x08 => object.layout = Some(self.layout(&mut body)?),
                0x0b => object.pipeline = pipeline(&mut body)?,
                0x10 => {
                    let at = body.number(self.offset_width)?;
                    more.push_back((at, body.number(self.length_width)?));
                }
                0x11 => {
                    let tree = body.number(self.offset_width)?;
                    object.symbol_table = Some((tree, body.number(self.offset_width)?));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn dataspace(&self, body: &mut Fields<'_>) -> Result<Dims, H5Error> {
        let (version, rank, flags) = (body.u8()?, body.u8()?, body.u8()?);
        body.take(match version {
            1 => 5,
            2 => 1,
            _ => return Err(not_classic("a dataspace of an unknown version", body.at)),
        })?;
        if usize::from(rank) > DIMENSIONS_MAX {
            return Err(not_classic("a dataspace of more than 32 dimensions", body.at));
        }
        let mut dims = || (0..rank).map(|_| body.number(self.length_width)).collect::<Result<Vec<_>, _>>();
        let now = dims()?;
        let most = if flags & 1 != 0 { dims()? } else { now.clone() };
        Ok(Dims { now, most })
    }

    /// The addresses of the heap of links and of the B-tree of names of a dense group.
    fn link_info(&self, body: &mut Fields<'_>) -> Result<Option<(u64, u64)>, H5Error> {
        let (_version, flags) = (body.u8()?, body.u8()?);
        body.take(if flags & 1 != 0 { 8 } else { 0 })?;
        let (heap, names) = (body.address(self.offset_width)?, body.address(self.offset_width)?);
        Ok(heap.zip(names))
    }

    fn committed_datatype(&mut self, body: &mut Fields<'_>) -> Result<DatatypeMessage, H5Error> {
        let (version, kind) = (body.u8()?, body.u8()?);
        body.take(if version == 1 { 6 } else { 0 })?;
        if !(1..=3).contains(&version) || version == 3 && kind != 2 {
            return Err(not_classic("a datatype shared through a heap", body.at));
        }
        let address = body.number(self.offset_width)?;
        if let Some(known) = self.committed.get(&address) {
            return Ok(known.clone());
        }
        if std::mem::replace(&mut self.in_committed, true) {
            return Err(not_classic("a committed datatype that is shared itself", address));
        }
        let object = self.object(address)?;
        self.in_committed = false;
        let message = object.datatype;
        let message = message.ok_or_else(|| not_classic("a committed datatype without its message", address))?;
        self.committed.insert(address, message.clone());
        Ok(message)
    }

    fn layout(&self, body: &mut Fields<'_>) -> Result<Layout, H5Error> {
        let version = body.u8()?;
        let unknown = not_classic("an unknown data layout", body.at);
        let (class, rank) = match version {
            1 | 2 => {
                let (rank, class) = (body.u8()?, body.u8()?);
                body.take(5)?;
                (class, usize::from(rank))
            }
            3..=5 => (body.u8()?, 0),
            _ => return Err(unknown),
        };
        Ok(match class {
            0 | 3 => Layout::Elsewhere,
            1 => match (body.address(self.offset_width)?, version) {
                (None, _) => Layout::Elsewhere,
                (Some(address), 1 | 2) => Layout::Contiguous { address, bytes: None },
                (Some(address), _) => Layout::Contiguous { address, bytes: Some(body.number(self.length_width)?) },
            },
            2 if version < 4 => {
                let rank = if version == 3 { usize::from(body.u8()?) } else { rank };
                if rank > DIMENSIONS_MAX + 1 {
                    return Err(unknown);
                }
                let address = body.address(self.offset_width)?;
                let dims = (0..rank).map(|_| body.number(4)).collect::<Result<_, _>>()?;
                match address {
                    Some(address) => Layout::Chunked { index: Index::Tree1(address), dims },
                    None => Layout::Elsewhere,
                }
            }
            2 => self.indexed_layout(body)?,
            _ => return Err(unknown),
        })
    }

    /// The chunk layout in data layout messages of versions 4 and 5.
    fn indexed_layout(&self, body: &mut Fields<'_>) -> Result<Layout, H5Error> {
        let unknown = not_classic("an unknown data layout", body.at);
        let (flags, rank, width) = (body.u8()?, usize::from(body.u8()?), usize::from(body.u8()?));
        if rank > DIMENSIONS_MAX + 1 || !(1..=8).contains(&width) {
            return Err(unknown);
        }
        let dims = (0..rank).map(|_| body.number(width)).collect::<Result<_, _>>()?;
        let kind = body.u8()?;
        let single = match kind {
            1 if flags & 2 != 0 => Some((body.number(self.length_width)?, body.u32()?)),
            _ => None,
        };
        body.take(match kind {
            1 | 2 => 0,
            3 => 1,
            4 => 5,
            5 => 6,
            _ => return Err(unknown),
        })?;
        let Some(address) = body.address(self.offset_width)? else { return Ok(Layout::Elsewhere) };
        let index = match kind {
            1 => Index::Single(address, single),
            2 => Index::Implicit(address),
            3 => Index::FixedArray(address),
            4 => Index::ExtensibleArray(address),
            _ => Index::Tree2(address),
        };
        Ok(Layout::Chunked { index, dims })
    }

    /// Reads the header of a local heap. Returns the address and the length in bytes of the names in the heap.
    fn local_heap(&mut self, address: u64) -> Result<(u64, u64), H5Error> {
        let bytes = self.piece(address, 8 + 2 * self.length_width + self.offset_width)?;
        let mut fields = Fields { bytes: &bytes, at: address };
        if fields.take(4)? != b"HEAP" {
            return Err(not_classic("a heap without its signature", address));
        }
        fields.take(4)?;
        let len = fields.number(self.length_width)?;
        fields.number(self.length_width)?;
        Ok((fields.number(self.offset_width)?, len))
    }

    fn group_node(&mut self, address: u64, above: Option<u8>, symbols: &mut Vec<Symbol>) -> Result<(), H5Error> {
        let (level, children) = self.node(address, 0, above)?;
        let (key_len, child_len) = (self.length_width, self.offset_width);
        let from = address.saturating_add(8 + 2 * child_len as u64);
        let bytes = self.piece(from, children * (key_len + child_len))?;
        let mut fields = Fields { bytes: &bytes, at: from };
        for _ in 0..children {
            self.pay(0, from)?;
            fields.take(key_len)?;
            let child = fields.number(child_len)?;
            match level {
                0 => self.symbols(child, symbols)?,
                _ => self.group_node(child, Some(level), symbols)?,
            }
        }
        Ok(())
    }

    fn symbols(&mut self, address: u64, symbols: &mut Vec<Symbol>) -> Result<(), H5Error> {
        let head = self.piece(address, 8)?;
        let mut fields = Fields { bytes: &head, at: address };
        if fields.take(4)? != b"SNOD" {
            return Err(not_classic("a symbol table node without its signature", address));
        }
        fields.take(2)?;
        let count = usize::from(fields.u16()?);
        let entry_len = 2 * self.offset_width + 24;
        let bytes = self.piece(address.saturating_add(8), count * entry_len)?;
        let mut fields = Fields { bytes: &bytes, at: address };
        for _ in 0..count {
            self.pay(0, address)?;
            let name = fields.number(self.offset_width)?;
            let object = fields.number(self.offset_width)?;
            let cached = fields.u32()?;
            fields.take(20)?;
            // The value 2 means a soft link.
            if cached != 2 {
                self.keep(0, address)?;
                symbols.push((name, object));
            }
        }
        Ok(())
    }

    /// A name in a local heap, without the final NUL.
    fn heap_name(&mut self, heap: u64, heap_len: u64, at: u64) -> Result<Box<[u8]>, H5Error> {
        let mut name = Vec::new();
        while name.len() < NAME_MAX {
            let from = at.saturating_add(name.len() as u64);
            let len = heap_len.saturating_sub(from).min(128) as usize;
            let start = heap.saturating_add(from).saturating_add(self.base);
            let bytes = self.reader.get(start, len)?;
            match bytes.iter().position(|&b| b == 0) {
                Some(end) => {
                    name.extend_from_slice(&bytes[..end]);
                    self.pay(name.len(), at)?;
                    return Ok(name.into());
                }
                None if bytes.is_empty() => break,
                None => name.extend_from_slice(bytes),
            }
        }
        Err(not_classic("a name without an end", at))
    }
}

fn datatype_message(body: &Fields<'_>) -> Result<DatatypeMessage, H5Error> {
    match (datatype::parse(body.bytes), datatype::message_width(body.bytes)) {
        (Some(parsed), Some(width)) => Ok((parsed, width)),
        _ => Err(not_classic("an unknown datatype", body.at)),
    }
}

fn pipeline(body: &mut Fields<'_>) -> Result<Vec<PipelineFilter>, H5Error> {
    let (version, count) = (body.u8()?, body.u8()?);
    if !matches!(version, 1 | 2) || count > 32 {
        return Err(not_classic("a filter pipeline of an unknown version", body.at));
    }
    body.take(if version == 1 { 6 } else { 0 })?;
    let mut filters = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let id = body.u16()?;
        let named = version == 1 || id >= 256;
        let name_len = if named { usize::from(body.u16()?) } else { 0 };
        let _flags = body.u16()?;
        let parameters = usize::from(body.u16()?);
        body.take(if version == 1 { name_len.next_multiple_of(8) } else { name_len })?;
        let mut first = None;
        for nth in 0..parameters {
            let value = body.u32()?;
            first = if nth == 0 { Some(value) } else { first };
        }
        body.take(if version == 1 && parameters % 2 == 1 { 4 } else { 0 })?;
        filters.push((id, first));
    }
    Ok(filters)
}
