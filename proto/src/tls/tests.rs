use super::*;
use tokio::net::TcpListener;

fn authority() -> Authority {
    Authority::make("bed").expect("made")
}

fn identity(authority: &Authority, uid: u32) -> Arc<Identity> {
    Arc::new(Identity::new(authority, uid).expect("an identity"))
}

/// An identity whose certificate has the age `before`.
fn made_before(authority: &Authority, uid: u32, before: Duration) -> Arc<Identity> {
    let identity = Identity::new(authority, uid).expect("an identity");
    let made = SystemTime::now() - before;
    let valid = made - BACK_DATED..made + LIFE;
    let mut current = identity.current.lock().expect("not poisoned");
    let old = keys(&current.issuer, &current.roots, &identity.provider, &identity.name, valid).expect("made");
    // The time of making is set to now, so the identity does not renew the certificate.
    current.keys = Arc::new(Keys { made: SystemTime::now(), ..old });
    drop(current);
    Arc::new(identity)
}

/// Lets a server and a client connect, and returns the result of each side. The client reads one byte, because the
/// server checks the client's certificate after the client's side of the handshake has ended.
async fn meet(server: &Arc<Identity>, client: &Arc<Identity>) -> (Result<(), String>, Result<(), String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = Arc::clone(server);
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut stream = accept(&server, stream, &Semaphore::new(1)).await.map_err(|error| error.to_string())?;
        stream.write_all(b"x").await.map_err(|error| error.to_string())
    });
    let asked = async {
        let mut stream = dial(&address, client).await?;
        stream.read_u8().await.map(drop)
    };
    let asked = asked.await.map_err(|error| explain(&error).unwrap_or_else(|| error.to_string()));
    (serving.await.expect("no panic"), asked)
}

#[tokio::test]
async fn only_processes_of_the_same_user_and_the_same_authority_accept_each_other() {
    let (own, other) = (authority(), authority());
    let alice = identity(&own, 6001);
    assert_eq!(meet(&alice, &identity(&own, 6001)).await, (Ok(()), Ok(())));
    let expired = Duration::from_secs(25 * 3600);
    for (client, at_server, at_client) in [
        (identity(&own, 6002), "to another cluster; it refuses", "to another cluster; this process refuses"),
        (identity(&other, 6001), "trusts another certificate authority", "another certificate authority made"),
        (made_before(&own, 6001, expired), "certificate of the client has expired", "this process has expired"),
    ] {
        let (server, client) = meet(&alice, &client).await;
        let (server, client) = (server.expect_err("refused"), client.expect_err("refused"));
        assert!(server.contains(at_server), "{server}");
        assert!(client.contains(at_client), "{client}");
    }
    let (server, client) = meet(&made_before(&own, 6001, expired), &alice).await;
    assert!(server.is_err_and(|it| it.contains("this process has expired")));
    assert!(client.is_err_and(|it| it.contains("certificate of the aggregator has expired")));
}

#[tokio::test]
async fn a_client_of_another_user_is_refused_although_it_does_not_check_the_name_of_the_server() {
    let own = authority();
    let (alice, bob) = (identity(&own, 6001), Identity::new(&own, 6002).expect("an identity"));
    let bob = Arc::new(Identity { name: alice.name.clone(), ..bob });
    let (server, _) = meet(&alice, &bob).await;
    assert!(server.expect_err("refused").contains("belongs to another user"));
}

#[tokio::test]
async fn a_client_that_stops_in_its_handshake_makes_room_for_others_after_a_second() {
    let alice = identity(&authority(), 6001);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let room = Arc::new(Semaphore::new(2));
    let mut stuck = Vec::new();
    let serve = |stream| {
        let (alice, room) = (Arc::clone(&alice), Arc::clone(&room));
        tokio::spawn(async move { accept(&alice, stream, &room).await.map(drop).map_err(|error| error.to_string()) })
    };
    for _ in 0..2 {
        let mut stream = TcpStream::connect(&address).await.expect("connected");
        stream.write_all(&[22]).await.expect("the first byte of a handshake");
        let (accepted, _) = listener.accept().await.expect("a connection");
        stuck.push((stream, serve(accepted)));
    }
    let began = std::time::Instant::now();
    let served = async { serve(listener.accept().await.expect("a connection").0).await.expect("no panic") };
    let (served, asked) = tokio::join!(served, dial(&address, &alice));
    assert!(
        served.is_ok() && asked.is_ok() && began.elapsed() < Duration::from_secs(5),
        "{:?}: {asked:?}",
        began.elapsed()
    );
    let refused = stuck.remove(0).1.await.expect("no panic");
    assert!(refused.is_err_and(|why| why.contains("did not finish the TLS handshake")));
}

/// An identity that reads these files again before each connection.
fn rereading(files: &Arc<Mutex<Authority>>) -> Arc<Identity> {
    let first = files.lock().expect("not poisoned").clone();
    let identity = Identity::new(&first, 6001).expect("an identity");
    let files = Arc::clone(files);
    let identity = identity.reading_again(Arc::new(move || Ok(files.lock().expect("not poisoned").clone())));
    let long_ago = Instant::now().checked_sub(RELOAD_INTERVAL).expect("the machine runs for more than a second");
    Arc::new(Identity { read_at: tokio::sync::Mutex::new(long_ago), ..identity })
}

#[tokio::test]
async fn a_process_that_reads_a_replaced_authority_late_is_never_refused_if_both_are_trusted_for_a_while() {
    let old = authority();
    let new_key = authority().key;
    let certificates = [old.certificates().expect("read")[0].0.clone(), old.certificate_of(&new_key).expect("made")];
    let both = old.with_certificates(&certificates).expect("written");
    assert_eq!(both.certificates().expect("read").iter().map(|(_, is_own)| *is_own).collect::<Vec<_>>(), [true, false]);
    let switched = Authority { key: new_key, ..both.clone() };
    let new = switched.with_certificates(&certificates[1..]).expect("written");
    let steps = [old, both, switched, new];
    // Each pair of consecutive steps works together: one process may read the new files before the other process
    // does.
    for pair in steps.windows(2) {
        let at = |step: &Authority| Arc::new(Mutex::new(step.clone()));
        for (server, client) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            assert_eq!(meet(&rereading(&at(server)), &rereading(&at(client))).await, (Ok(()), Ok(())));
        }
    }
    // A process that started with the files of the first step uses the files of the last step for its next
    // connection.
    let files = Arc::new(Mutex::new(steps[0].clone()));
    let process = rereading(&files);
    *files.lock().expect("not poisoned") = steps[3].clone();
    assert_eq!(meet(&process, &identity(&steps[3], 6001)).await, (Ok(()), Ok(())));
    let refused = meet(&process, &identity(&steps[0], 6001)).await;
    assert!(refused.0.is_err() && refused.1.is_err(), "the old authority is not trusted any more");
}

#[tokio::test]
async fn files_that_cannot_be_used_or_read_leave_a_process_with_its_identity() {
    let own = authority();
    let hung = Identity::new(&own, 6001).expect("an identity").reading_again(Arc::new(|| {
        std::thread::sleep(Duration::from_secs(5));
        Err("it hung".into())
    }));
    let long_ago = Instant::now().checked_sub(RELOAD_INTERVAL).expect("the machine runs for more than a second");
    let hung = Arc::new(Identity { read_at: tokio::sync::Mutex::new(long_ago), ..hung });
    let began = Instant::now();
    assert_eq!(meet(&hung, &identity(&own, 6001)).await, (Ok(()), Ok(())));
    assert!(began.elapsed() < RELOAD_MAX + Duration::from_secs(2), "{:?}", began.elapsed());
    let mixed = Authority { key: authority().key, certificates: own.certificates.clone() };
    let mixed = Identity::new(&own, 6001).expect("an identity").reading_again(Arc::new(move || Ok(mixed.clone())));
    let mixed = Arc::new(Identity { read_at: tokio::sync::Mutex::new(long_ago), ..mixed });
    assert_eq!(meet(&mixed, &identity(&own, 6001)).await, (Ok(()), Ok(())));
}

#[test]
fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
    let own = authority();
    let identity = Identity::with_life(&own, 6001, Duration::from_millis(600)).expect("an identity");
    let first = identity.keys();
    assert!(Arc::ptr_eq(&first, &identity.keys()));
    std::thread::sleep(Duration::from_millis(450));
    assert!(!Arc::ptr_eq(&first, &identity.keys()));
}

#[test]
fn files_that_do_not_belong_together_and_names_that_are_no_dns_names_are_refused() {
    let (own, other) = (authority(), authority());
    let mixed = Authority { key: own.key.clone(), certificates: other.certificates };
    assert!(matches!(Identity::new(&mixed, 1), Err(IdentityError::Tls(_))));
    let unnamed = Authority { key: own.key, certificates: own.certificates.replace('#', "") };
    assert!(matches!(Identity::new(&unnamed, 1), Err(IdentityError::NoCluster)));
    for name in ["", "my_cluster", "A", "-a", "a.b", &"a".repeat(64)] {
        assert!(matches!(Authority::make(name), Err(IdentityError::Name(_))), "{name}");
    }
}

#[test]
fn loopback_addresses_need_no_tls_and_all_other_ones_do() {
    for address in ["127.0.0.1:7117", "[::1]:7117", "localhost:7117", "127.9.9.9:0"] {
        assert!(!needs_tls(address), "{address}");
    }
    for address in ["0.0.0.0:7117", "[::]:7117", "n1:7117", "10.0.0.1:7117", "localhost.example:1"] {
        assert!(needs_tls(address), "{address}");
    }
}

#[test]
fn each_cause_has_a_sentence_that_says_what_to_do() {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error, InvalidMessage};
    for (error, says) in [
        (Error::InvalidMessage(InvalidMessage::InvalidContentType), "use the same setting of tls"),
        (Error::NoCertificatesPresented, "mcr cert init"),
        (Error::AlertReceived(Alert::CertificateRequired), "mcr cert init"),
        (Certificate::NotValidForName.into(), "another user"),
        (Error::AlertReceived(Alert::BadCertificate), "another user"),
        (Certificate::UnknownIssuer.into(), "mcr cert init"),
        (Certificate::BadSignature.into(), "mcr cert init"),
        (Error::AlertReceived(Alert::UnknownCA), "mcr cert init"),
        (Certificate::Expired.into(), "compare the clocks"),
        (Certificate::NotValidYet.into(), "compare the clocks"),
        (Error::AlertReceived(Alert::CertificateExpired), "compare the clocks"),
    ] {
        let sentence = explain(&io::Error::other(error.clone())).expect("a sentence");
        assert!(sentence.contains(says) && !sentence.contains(": "), "{error:?}: {sentence}");
    }
    assert_eq!(explain(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
}
