//! Sends and receives data frames without tonic's codec, which would copy each byte once on each side.
//!
//! The format on the wire is the format that the codec writes: a data frame is a [`v1::FromAgent`] like any other
//! message. The sender's body ([`WithData`]) sends the few bytes before the payload, and then the payload itself
//! without a copy. The receiver's body ([`TakesData`]) recognises a data frame by these few bytes. The receiver's
//! body passes the payload to the session's [`DataSlot`], in the pieces in which the payload arrived. The codec
//! handles all other messages, and data frames of an unusual form.

use crate::{HTTP_FRAME_BYTES, MESSAGE_BYTES_MAX, v1};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;

/// The key of the field `FromAgent.data`, and the keys of the three fields of `Data`.
const DATA: u8 = 3 << 3 | 2;
const FETCH_ID: u8 = 1 << 3;
const OFFSET: u8 = 2 << 3;
const BYTES: u8 = 3 << 3 | 2;
/// Length of the gRPC prefix of each message in bytes: 1 byte for compression, 4 bytes for the length.
const PREFIX_BYTES: usize = 5;
/// Number of chunks that are processed before other tasks get a turn.
const CHUNKS_PER_TURN: usize = 128;
/// Path of the gRPC call that carries data.
const SESSION: &str = "/mcr.v1.Aggregator/Session";

/// The bytes of a data frame before the payload, including the gRPC prefix.
fn head(data: &v1::Data) -> Bytes {
    let number = |key: u8, value: u64, into: &mut BytesMut| {
        if value != 0 {
            into.put_u8(key);
            encode_varint(value, into);
        }
    };
    let mut fields = BytesMut::with_capacity(40);
    number(FETCH_ID, data.fetch_id, &mut fields);
    number(OFFSET, data.offset, &mut fields);
    number(BYTES, data.bytes.len() as u64, &mut fields);
    let data_bytes = (fields.len() + data.bytes.len()) as u64;
    let mut head = BytesMut::with_capacity(PREFIX_BYTES + 11 + fields.len());
    head.put_u8(0);
    // A frame is far shorter than 4 GiB. The receiver would reject a longer frame.
    head.put_u32(u32::try_from(1 + encoded_len_varint(data_bytes) as u64 + data_bytes).unwrap_or(u32::MAX));
    head.put_u8(DATA);
    encode_varint(data_bytes, &mut head);
    head.put(fields);
    head.freeze()
}

/// The kind of a message, as its first bytes show it.
#[derive(Clone, Debug, PartialEq)]
enum Head {
    /// More bytes are needed to know the kind.
    Unclear,
    /// A message for the codec. This number of its bytes is still missing.
    Other(usize),
    /// A data frame. The payload of `bytes` bytes follows, and is the end of the message.
    Data { fetch_id: u64, offset: u64, bytes: usize },
}

/// Why bytes are not the beginning of a data frame.
enum NotData {
    TooShort,
    Other,
}

/// Parses the bytes received so far. The caller calls this function after each byte, so `have` never contains a byte
/// of a payload.
fn read_head(have: &[u8]) -> Head {
    let Some((&[compressed, a, b, c, d], message)) = have.split_first_chunk() else { return Head::Unclear };
    let total = u32::from_be_bytes([a, b, c, d]) as usize;
    let left = total.saturating_sub(message.len());
    if compressed != 0 || total > MESSAGE_BYTES_MAX {
        return Head::Other(left);
    }
    match read_data(message, total) {
        Ok(data) => data,
        Err(NotData::TooShort) if left > 0 => Head::Unclear,
        Err(_) => Head::Other(left),
    }
}

fn read_data(mut message: &[u8], total: usize) -> Result<Head, NotData> {
    let have = message.len();
    // Number of bytes of the message after the parsed bytes.
    let left = |rest: &[u8]| total.saturating_sub(have - rest.len()) as u64;
    if !take_key(&mut message, DATA)? || take_number(&mut message)? != left(message) {
        return Err(NotData::Other);
    }
    let fetch_id = if take_key(&mut message, FETCH_ID)? { take_number(&mut message)? } else { 0 };
    let offset = if take_key(&mut message, OFFSET)? { take_number(&mut message)? } else { 0 };
    if !take_key(&mut message, BYTES)? || take_number(&mut message)? != left(message) || left(message) == 0 {
        return Err(NotData::Other);
    }
    let bytes = usize::try_from(left(message)).map_err(|_| NotData::Other)?;
    Ok(Head::Data { fetch_id, offset, bytes })
}

/// Removes the key from the bytes if the bytes begin with it. Returns whether the key was removed.
fn take_key(bytes: &mut &[u8], key: u8) -> Result<bool, NotData> {
    match bytes.split_first() {
        None => Err(NotData::TooShort),
        Some((&found, rest)) if found == key => {
            *bytes = rest;
            Ok(true)
        }
        Some(_) => Ok(false),
    }
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, NotData> {
    /// Maximum length of an encoded number, in bytes.
    const VARINT_BYTES_MAX: usize = 10;
    match bytes.iter().take(VARINT_BYTES_MAX).any(|byte| byte & 0x80 == 0) {
        true => decode_varint(bytes).map_err(|_| NotData::Other),
        false if bytes.len() < VARINT_BYTES_MAX => Err(NotData::TooShort),
        false => Err(NotData::Other),
    }
}

/// A received data frame.
#[derive(Debug)]
pub struct DataFrame {
    /// Number of the fetch that the frame answers.
    pub fetch_id: u64,
    /// Offset of the frame's first byte in the requested ranges, in bytes.
    pub offset: u64,
    /// The pieces of the payload. There is at least one piece.
    pub pieces: Vec<Bytes>,
}

impl DataFrame {
    /// Length of the payload.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

impl From<v1::Data> for DataFrame {
    fn from(data: v1::Data) -> Self {
        Self { fetch_id: data.fetch_id, offset: data.offset, pieces: vec![data.bytes] }
    }
}

type Take = dyn Fn(DataFrame) + Send + Sync;

/// The receiver of a session's data. The server puts the slot into the request's extensions, and fills it once the
/// session is known. Data that arrives before the slot is filled answers no fetch and is dropped.
#[derive(Clone, Default)]
pub struct DataSlot(Arc<OnceLock<Box<Take>>>);

impl DataSlot {
    /// Passes all frames that arrive after this call to `take`, in order. The task that reads from the network calls
    /// `take`, so `take` must not wait.
    pub fn fill(&self, take: impl Fn(DataFrame) + Send + Sync + 'static) {
        // Only the first call has an effect. A session makes only one call.
        let _ = self.0.set(Box::new(take));
    }
}

/// The receiving side of [`WithData`], which wraps the generated server.
#[derive(Clone)]
pub struct TakesData<S>(pub S);

impl<S: NamedService> NamedService for TakesData<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for TakesData<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> S::Future {
        if request.uri().path() == SESSION {
            let slot = DataSlot::default();
            request.extensions_mut().insert(slot.clone());
            request = request.map(|inner| {
                Body::new(Sorted { inner, slot, chunk: Bytes::new(), message: Message::Head(Vec::new()) })
            });
        }
        self.0.call(request)
    }
}

/// A body from which the data frames are removed.
struct Sorted {
    inner: Body,
    slot: DataSlot,
    /// Received bytes that are not yet processed.
    chunk: Bytes,
    message: Message,
}

/// The state of reading a message.
enum Message {
    /// The first bytes of the message. These bytes are too few to know the kind of the message.
    Head(Vec<u8>),
    /// A message for the codec. This number of its bytes is still missing.
    Other(usize),
    /// A data frame; received pieces of the frame below [`PIECE_BYTES_MIN`], joined; and the number of missing bytes.
    Data(DataFrame, BytesMut, usize),
}

/// Pieces shorter than this number of bytes are joined, because each piece needs memory for its bookkeeping.
const PIECE_BYTES_MIN: usize = 4096;

impl Sorted {
    /// Processes a part of the chunk. Returns the bytes for the codec.
    fn sort(&mut self) -> Option<Bytes> {
        match &mut self.message {
            Message::Head(have) => {
                while self.chunk.has_remaining() {
                    have.push(self.chunk.get_u8());
                    match read_head(have) {
                        Head::Unclear => {}
                        Head::Data { fetch_id, offset, bytes } => {
                            let pieces = Vec::with_capacity(bytes.div_ceil(HTTP_FRAME_BYTES as usize) + 1);
                            let frame = DataFrame { fetch_id, offset, pieces };
                            self.message = Message::Data(frame, BytesMut::new(), bytes);
                            return None;
                        }
                        Head::Other(left) => {
                            let head = std::mem::take(have).into();
                            self.message = if left == 0 { Message::Head(Vec::new()) } else { Message::Other(left) };
                            return Some(head);
                        }
                    }
                }
                None
            }
            Message::Other(left) => {
                let piece = self.chunk.split_to(self.chunk.len().min(*left));
                *left -= piece.len();
                if *left == 0 {
                    self.message = Message::Head(Vec::new());
                }
                Some(piece)
            }
            Message::Data(frame, tiny, left) => {
                let piece = self.chunk.split_to(self.chunk.len().min(*left));
                *left -= piece.len();
                let is_tiny = piece.len() < PIECE_BYTES_MIN;
                if is_tiny {
                    tiny.extend_from_slice(&piece);
                }
                if !tiny.is_empty() && (!is_tiny || *left == 0) {
                    frame.pieces.push(std::mem::take(tiny).freeze());
                }
                if !is_tiny {
                    frame.pieces.push(piece);
                }
                if *left == 0
                    && let Message::Data(frame, ..) = std::mem::replace(&mut self.message, Message::Head(Vec::new()))
                    && let Some(take) = self.slot.0.get()
                {
                    take(frame);
                }
                None
            }
        }
    }
}

impl HttpBody for Sorted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        for _ in 0..CHUNKS_PER_TURN {
            if self.chunk.is_empty() {
                match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(chunk) => self.chunk = chunk,
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    },
                    end => return Poll::Ready(end),
                }
            }
            if let Some(bytes) = self.sort() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Wraps the channel of one session, and inserts the data of a queue between the session's messages.
#[derive(Clone)]
pub struct WithData<S> {
    inner: S,
    queue: Arc<Mutex<Option<mpsc::Receiver<v1::Data>>>>,
}

impl<S> WithData<S> {
    /// The end of the queue does not end the session.
    pub fn new(inner: S, queue: mpsc::Receiver<v1::Data>) -> Self {
        Self { inner, queue: Arc::new(Mutex::new(Some(queue))) }
    }
}

impl<S, B> Service<Request<Body>> for WithData<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> S::Future {
        if request.uri().path() == SESSION
            && let Some(queue) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            request = request.map(|messages| Body::new(Mixed { messages, queue, payload: None }));
        }
        self.inner.call(request)
    }
}

/// A body that consists of messages from the codec with data frames between them. Each chunk from the codec must end
/// at the end of a message.
struct Mixed {
    messages: Body,
    queue: mpsc::Receiver<v1::Data>,
    /// The payload of a frame whose head was sent.
    payload: Option<Bytes>,
}

impl HttpBody for Mixed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        // Messages are few and short, so messages are sent before data and delay no data noticeably.
        if let Poll::Ready(frame) = Pin::new(&mut self.messages).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        // If the queue of data has ended, only the messages determine when the session ends.
        match self.queue.poll_recv(cx) {
            Poll::Ready(Some(data)) => {
                let head = head(&data);
                self.payload = (!data.bytes.is_empty()).then_some(data.bytes);
                Poll::Ready(Some(Ok(Frame::data(head))))
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message as _;
    use std::future::poll_fn;

    fn message(data: v1::Data) -> v1::FromAgent {
        v1::FromAgent { message: Some(v1::from_agent::Message::Data(data)) }
    }

    fn heartbeat() -> v1::FromAgent {
        v1::FromAgent {
            message: Some(v1::from_agent::Message::Heartbeat(v1::Heartbeat { at_rest: true, clock_ns: 7 })),
        }
    }

    /// A message with its gRPC prefix.
    fn framed(message: &v1::FromAgent) -> Vec<u8> {
        let body = message.encode_to_vec();
        [&[0][..], &(body.len() as u32).to_be_bytes(), &body].concat()
    }

    /// A body that yields these chunks.
    struct Chunks(std::vec::IntoIter<Bytes>);

    impl HttpBody for Chunks {
        type Data = Bytes;
        type Error = Status;
        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.next().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    /// Number of the fetch, offset and payload of a received frame.
    type Taken = (u64, u64, Vec<u8>);

    /// Sends bytes in chunks. Returns the bytes that the codec gets, and the frames that the slot gets.
    fn sorted(sent: &[u8], chunk_bytes: usize) -> (Vec<u8>, Vec<Taken>) {
        let chunks: Vec<Bytes> = sent.chunks(chunk_bytes.max(1)).map(Bytes::copy_from_slice).collect();
        let (slot, taken) = (DataSlot::default(), Arc::new(Mutex::new(Vec::new())));
        let to = Arc::clone(&taken);
        slot.fill(move |frame| {
            let payload: Vec<u8> = frame.pieces.concat();
            assert_eq!(payload.len(), frame.bytes());
            to.lock().expect("not poisoned").push((frame.fetch_id, frame.offset, payload));
        });
        let inner = Body::new(Chunks(chunks.into_iter()));
        let body = Sorted { inner, slot, chunk: Bytes::new(), message: Message::Head(Vec::new()) };
        let others = all_of(body);
        let taken = taken.lock().expect("not poisoned").clone();
        (others, taken)
    }

    fn all_of(mut body: impl HttpBody<Data = Bytes, Error = Status> + Unpin) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                all.extend_from_slice(&frame.expect("no error").into_data().expect("data"));
            }
            all
        })
    }

    proptest! {
        #[test]
        fn a_frame_is_sent_as_the_codec_would_send_it(
            fetch_id: u64, offset: u64, bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let data = v1::Data { fetch_id, offset, bytes: bytes.into() };
            let sent = [&head(&data)[..], &data.bytes].concat();
            prop_assert_eq!(sent, framed(&message(data)));
        }

        #[test]
        fn data_frames_are_taken_and_everything_else_is_left_however_it_is_cut(
            frames in prop::collection::vec((any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 1..20_000)), 0..8),
            chunk_bytes in prop_oneof![1usize..400, 3000usize..30_000],
        ) {
            let (mut sent, mut others) = (Vec::new(), Vec::new());
            for (fetch_id, offset, bytes) in &frames {
                let data = v1::Data { fetch_id: *fetch_id, offset: *offset, bytes: bytes.clone().into() };
                sent.extend(framed(&message(data)));
                for other in [heartbeat(), v1::FromAgent::default()] {
                    sent.extend(framed(&other));
                    others.extend(framed(&other));
                }
            }
            prop_assert_eq!(sorted(&sent, chunk_bytes), (others, frames));
        }

        #[test]
        fn garbage_is_the_codecs_to_refuse(garbage in prop::collection::vec(any::<u8>(), 0..200), chunk_bytes in 1usize..50) {
            let (others, taken) = sorted(&garbage, chunk_bytes);
            let taken: usize = taken.iter().map(|(_, _, payload)| payload.len()).sum();
            prop_assert!(others.len() + taken <= garbage.len());
        }
    }

    #[test]
    fn a_data_frame_of_an_unusual_shape_is_left_to_the_codec() {
        let plain = framed(&message(v1::Data { fetch_id: 7, offset: 9, bytes: vec![1, 2, 3].into() }));
        assert_eq!(sorted(&plain, 5).1, [(7, 9, vec![1, 2, 3])]);
        // Five unusual frames: the offset precedes the fetch; an unknown field; no payload; compressed; a wrong
        // length.
        let unusual: [&[u8]; 5] = [
            &[0, 0, 0, 0, 11, DATA, 9, OFFSET, 9, FETCH_ID, 7, BYTES, 3, 1, 2, 3],
            &[0, 0, 0, 0, 11, DATA, 9, FETCH_ID, 7, BYTES, 3, 1, 2, 3, 0x20, 1],
            &[0, 0, 0, 0, 4, DATA, 2, FETCH_ID, 7],
            &[1, 0, 0, 0, 9, DATA, 7, FETCH_ID, 7, BYTES, 3, 1, 2, 3],
            &[0, 0, 0, 0, 9, DATA, 8, FETCH_ID, 7, BYTES, 3, 1, 2, 3],
        ];
        for sent in unusual {
            for chunk_bytes in [1, 3, 100] {
                let both = [sent, &plain].concat();
                assert_eq!(sorted(&both, chunk_bytes), (sent.to_vec(), vec![(7, 9, vec![1, 2, 3])]), "{sent:?}");
            }
        }
    }

    #[test]
    fn messages_and_data_share_a_body_and_neither_cuts_the_other() {
        let (out, queue) = mpsc::channel(4);
        let datas: Vec<v1::Data> =
            (1..4u8).map(|i| v1::Data { fetch_id: i.into(), offset: 0, bytes: vec![i; 40].into() }).collect();
        for data in &datas {
            out.try_send(data.clone()).expect("room");
        }
        let (say, messages) = mpsc::channel::<Bytes>(4);
        say.try_send(framed(&heartbeat()).into()).expect("room");
        struct Queue(mpsc::Receiver<Bytes>);
        impl HttpBody for Queue {
            type Data = Bytes;
            type Error = Status;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
            }
        }
        let mut mixed = Mixed { messages: Body::new(Queue(messages)), queue, payload: None };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let sent = runtime.block_on(async {
            let mut sent = Vec::new();
            // There are one message and three frames of two parts each. Then the messages end.
            for _ in 0..7 {
                let frame = poll_fn(|cx| Pin::new(&mut mixed).poll_frame(cx)).await.expect("more").expect("no error");
                sent.extend_from_slice(&frame.into_data().expect("data"));
            }
            drop(out);
            drop(say);
            assert!(poll_fn(|cx| Pin::new(&mut mixed).poll_frame(cx)).await.is_none());
            sent
        });
        let expected: Vec<u8> = datas.into_iter().flat_map(|data| framed(&message(data))).collect();
        assert_eq!(sent, [framed(&heartbeat()), expected].concat());
    }
}
