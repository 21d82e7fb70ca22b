//! Data frames on their way past tonic's codec, which would copy each byte once at either end.
//!
//! On the wire nothing differs: a frame is a [`v1::FromAgent`] like any other. The sender's body ([`WithData`]) puts the
//! few bytes before the payload in front of it and hands both on as they are; the receiver's ([`TakesData`]) knows a
//! frame by these few bytes, and gives its payload, in the pieces in which it arrived, to the session's [`DataSlot`].
//! Whatever else is said goes through the codec, data frames of an unusual shape too.

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

/// The key of `FromAgent.data`, and those of the fields of `Data`.
const DATA: u8 = 3 << 3 | 2;
const FETCH_ID: u8 = 1 << 3;
const OFFSET: u8 = 2 << 3;
const BYTES: u8 = 3 << 3 | 2;
/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Chunks that are looked at before others have their turn.
const TURN: usize = 128;
/// The path of the call that carries data.
const SESSION: &str = "/mcr.v1.Aggregator/Session";

/// All of a message before the payload, gRPC's prefix included.
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
    // A frame is far shorter than 4 GiB; if it were not, the receiver would refuse it.
    head.put_u32(u32::try_from(1 + encoded_len_varint(data_bytes) as u64 + data_bytes).unwrap_or(u32::MAX));
    head.put_u8(DATA);
    encode_varint(data_bytes, &mut head);
    head.put(fields);
    head.freeze()
}

/// What the first bytes of a message tell.
#[derive(Clone, Debug, PartialEq)]
enum Head {
    /// Too few to tell.
    Unclear,
    /// The codec's, with so many bytes to come.
    Other(usize),
    /// A payload of so many bytes comes next, and nothing after it.
    Data { fetch_id: u64, offset: u64, bytes: usize },
}

/// Why bytes are not the beginning of a data frame.
enum NotData {
    TooShort,
    Other,
}

/// Reads what came so far; called with one byte more each time, so that no byte of a payload is among them.
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
    // Bytes of the message after what was read.
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

/// Whether this key comes next; then it is taken.
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
    /// The longest form of a number.
    const MOST: usize = 10;
    match bytes.iter().take(MOST).any(|byte| byte & 0x80 == 0) {
        true => decode_varint(bytes).map_err(|_| NotData::Other),
        false if bytes.len() < MOST => Err(NotData::TooShort),
        false => Err(NotData::Other),
    }
}

/// A data frame as it arrived.
#[derive(Debug)]
pub struct DataFrame {
    /// Which fetch it answers.
    pub fetch_id: u64,
    /// Of its first byte in what was asked for.
    pub offset: u64,
    /// The payload; never empty.
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

/// Who takes the data of a session: found among the request's extensions, and filled once it is known. Before that, data
/// answer nothing that was asked, and are dropped.
#[derive(Clone, Default)]
pub struct DataSlot(Arc<OnceLock<Box<Take>>>);

impl DataSlot {
    /// From now on frames go there, in order. Called within the network's own task, so it must not wait.
    pub fn fill(&self, take: impl Fn(DataFrame) + Send + Sync + 'static) {
        // The first one counts; a session has only one.
        let _ = self.0.set(Box::new(take));
    }
}

/// The receiving side of [`WithData`], around the generated server.
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

/// A body without its data frames.
struct Sorted {
    inner: Body,
    slot: DataSlot,
    /// What arrived and was not looked at yet.
    chunk: Bytes,
    message: Message,
}

/// Where in a message the next byte is.
enum Message {
    /// These bytes of it came, too few to tell what it is.
    Head(Vec<u8>),
    /// The codec's, with so many bytes to come.
    Other(usize),
    /// A data frame, the last few bytes of it that came in tiny pieces, and how many bytes are to come.
    Data(DataFrame, BytesMut, usize),
}

/// Pieces below this are put together, in bytes: each costs the memory of its bookkeeping.
const PIECE_BYTES_MIN: usize = 4096;

impl Sorted {
    /// Looks at some of the chunk; what of it is the codec's.
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
        for _ in 0..TURN {
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

/// Around the channel of one session: what comes from the queue is sent between the session's messages.
#[derive(Clone)]
pub struct WithData<S> {
    inner: S,
    queue: Arc<Mutex<Option<mpsc::Receiver<v1::Data>>>>,
}

impl<S> WithData<S> {
    /// For one session. The queue's end does not end it.
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

/// A body of messages from the codec, each chunk of which ends where a message ends, and data frames between them.
struct Mixed {
    messages: Body,
    queue: mpsc::Receiver<v1::Data>,
    /// Whose head was handed on.
    payload: Option<Bytes>,
}

impl HttpBody for Mixed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        // Messages are few and short, so they go first, and keep nothing waiting.
        if let Poll::Ready(frame) = Pin::new(&mut self.messages).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        // Without a sender it is the messages that tell when the session ends.
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

    /// As gRPC sends it.
    fn framed(message: &v1::FromAgent) -> Vec<u8> {
        let body = message.encode_to_vec();
        [&[0][..], &(body.len() as u32).to_be_bytes(), &body].concat()
    }

    /// A body that arrives in these chunks.
    struct Chunks(std::vec::IntoIter<Bytes>);

    impl HttpBody for Chunks {
        type Data = Bytes;
        type Error = Status;
        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.next().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    /// Fetch, offset and payload.
    type Taken = (u64, u64, Vec<u8>);

    /// What the codec gets, and what the slot gets.
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
        // Offset before fetch, a field that is not known, no payload, compressed, a length that does not fit.
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
            // A message and three frames, each of two parts; then the messages end.
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
