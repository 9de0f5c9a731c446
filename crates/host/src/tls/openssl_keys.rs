//! Keys that both ends share beforehand, as OpenSSL takes them: a session that was never made by a handshake. The crate has
//! callbacks for keys of SHA-256 alone; these know both hash functions.
//!
//! What a connection offers or has keys for lies in its extra data, where the callbacks find it. None of them unwinds: they
//! allocate, compare and copy.

use foreign_types::ForeignTypeRef as _;
use nvme_tcp::HashFunction;
use nvme_tcp::psk::{TlsPsk, offered_identities};
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    ClientHelloResponse, Ssl, SslAlert, SslContext, SslContextBuilder, SslMethod, SslOptions, SslRef,
    SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use openssl_sys as ffi;
use std::ffi::{CStr, c_int, c_uchar};
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::key_owner::{FindKey, PskPeer};

/// A server's keys, and the one that a client has offered.
struct Keys {
    find: Arc<FindKey>,
    chosen: Option<(TlsPsk, PskPeer)>,
}

/// `pre_shared_key` among the extensions of a ClientHello.
const PRE_SHARED_KEY: u32 = 41;

const TLS_1_3: c_int = ffi::TLS1_3_VERSION;

type UseSession = unsafe extern "C" fn(
    *mut ffi::SSL,
    *const ffi::EVP_MD,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut ffi::SSL_SESSION,
) -> c_int;

type FindSession =
    unsafe extern "C" fn(*mut ffi::SSL, *const c_uchar, usize, *mut *mut ffi::SSL_SESSION) -> c_int;

// SAFETY: they are declared as OpenSSL 1.1.1 and 3 have them in ssl.h.
unsafe extern "C" {
    fn SSL_CTX_set_psk_use_session_callback(context: *mut ffi::SSL_CTX, callback: Option<UseSession>);
    fn SSL_CTX_set_psk_find_session_callback(context: *mut ffi::SSL_CTX, callback: Option<FindSession>);
    fn SSL_SESSION_new() -> *mut ffi::SSL_SESSION;
    fn SSL_SESSION_set1_master_key(
        session: *mut ffi::SSL_SESSION,
        key: *const c_uchar,
        bytes: usize,
    ) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut ffi::SSL_SESSION, cipher: *const ffi::SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut ffi::SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut ffi::SSL, number: *const c_uchar) -> *const ffi::SSL_CIPHER;
}

/// The cipher suite of a hash function: its name, and its number on the wire.
fn suite(function: HashFunction) -> (&'static CStr, [u8; 2]) {
    match function {
        HashFunction::Sha384 => (c"TLS_AES_256_GCM_SHA384", [0x13, 0x02]),
        _ => (c"TLS_AES_128_GCM_SHA256", [0x13, 0x01]),
    }
}

/// What is the same on both sides: TLS 1.3, no tickets, no session but those of keys.
fn context(method: SslMethod) -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContext::builder(method)?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    context.set_options(SslOptions::NO_TICKET);
    context.set_num_tickets(0)?;
    context.set_ciphersuites("TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256")?;
    Ok(context)
}

/// For connections that offer one key.
pub(super) fn client_context() -> Result<SslContext, ErrorStack> {
    let mut context = context(SslMethod::tls_client())?;
    // No authority is trusted, so a server without the key, which may offer a certificate, is refused.
    context.set_verify(SslVerifyMode::PEER);
    // SAFETY: the context lives; the callback has the type that OpenSSL calls.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session)) };
    Ok(context.build())
}

/// For connections that know clients by their keys.
pub(super) fn server_context() -> Result<SslContext, ErrorStack> {
    let mut context = context(SslMethod::tls_server())?;
    context.set_client_hello_callback(choose);
    // SAFETY: as above.
    unsafe { SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session)) };
    Ok(context.build())
}

/// A connection that offers this key.
pub(super) fn client(context: &SslContext, key: TlsPsk) -> Result<Ssl, ErrorStack> {
    let mut ssl = Ssl::new(context)?;
    restrict(&mut ssl, key.function)?;
    ssl.set_ex_data(key_index()?, key);
    Ok(ssl)
}

/// A connection that asks `find` for the key of each identity.
pub(super) fn server(context: &SslContext, find: Arc<FindKey>) -> Result<Ssl, ErrorStack> {
    let mut ssl = Ssl::new(context)?;
    ssl.set_ex_data(keys_index()?, Keys { find, chosen: None });
    Ok(ssl)
}

/// Whose key a connection was made with; none: of no key.
pub(super) fn owner(ssl: &SslRef) -> Option<&PskPeer> {
    let keys = ssl.ex_data(keys_index().ok()?)?;
    keys.chosen.as_ref().map(|(_, owner)| owner)
}

fn key_index() -> Result<Index<Ssl, TlsPsk>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, TlsPsk>> = OnceLock::new();
    INDEX.get().copied().map_or_else(|| Ssl::new_ex_index().map(|new| *INDEX.get_or_init(|| new)), Ok)
}

fn keys_index() -> Result<Index<Ssl, Keys>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, Keys>> = OnceLock::new();
    INDEX.get().copied().map_or_else(|| Ssl::new_ex_index().map(|new| *INDEX.get_or_init(|| new)), Ok)
}

/// Leaves a connection the cipher suite of one hash function.
fn restrict(ssl: &mut SslRef, function: HashFunction) -> Result<(), ErrorStack> {
    // SAFETY: the connection lives, and the name ends with a zero.
    let set = unsafe { ffi::SSL_set_ciphersuites(ssl.as_ptr(), suite(function).0.as_ptr()) };
    if set == 1 { Ok(()) } else { Err(ErrorStack::get()) }
}

/// The server has a ClientHello: chooses a key that it knows, and with it the cipher suite. By itself OpenSSL takes the suite
/// first, and then no key of another hash function.
fn choose(ssl: &mut SslRef, alert: &mut SslAlert) -> Result<ClientHelloResponse, ErrorStack> {
    *alert = SslAlert::UNKNOWN_PSK_IDENTITY;
    let chosen = ssl.ex_data(keys_index()?).and_then(|keys| {
        let identities = offered_identities(extension(ssl, PRE_SHARED_KEY)?)?;
        identities.into_iter().find_map(|identity| (keys.find)(identity))
    });
    let Some((key, owner)) = chosen else { return Err(ErrorStack::get()) };
    restrict(ssl, key.function)?;
    if let Some(keys) = ssl.ex_data_mut(keys_index()?) {
        keys.chosen = Some((key, owner));
    }
    Ok(ClientHelloResponse::SUCCESS)
}

/// An extension of the ClientHello, during its callback.
fn extension(ssl: &SslRef, number: u32) -> Option<&[u8]> {
    let (mut start, mut bytes) = (ptr::null(), 0);
    // SAFETY: only the callback of a ClientHello calls this, while it is kept.
    let found = unsafe { ffi::SSL_client_hello_get0_ext(ssl.as_ptr(), number, &mut start, &mut bytes) };
    if found != 1 || start.is_null() {
        return None;
    }
    // SAFETY: OpenSSL has said where it lies; it stays until the callback returns, which is longer than the borrow is used.
    Some(unsafe { std::slice::from_raw_parts(start, bytes) })
}

/// A session that has `key` for its secret; null: no memory.
///
/// # Safety
/// `ssl` is a connection.
unsafe fn session(ssl: *mut ffi::SSL, key: &TlsPsk) -> *mut ffi::SSL_SESSION {
    let (_, number) = suite(key.function);
    // SAFETY: the key has as many bytes as are named; what was made is freed if it is not handed on.
    unsafe {
        let cipher = SSL_CIPHER_find(ssl, number.as_ptr());
        let session = SSL_SESSION_new();
        let made = !cipher.is_null()
            && !session.is_null()
            && SSL_SESSION_set1_master_key(session, key.key.as_ptr(), key.key.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, TLS_1_3) == 1;
        if made {
            return session;
        }
        ffi::SSL_SESSION_free(session);
        ptr::null_mut()
    }
}

/// The client begins its ClientHello: offers the connection's key.
///
/// # Safety
/// Called by OpenSSL, with a connection and places to write to.
unsafe extern "C" fn use_session(
    ssl: *mut ffi::SSL,
    _hash: *const ffi::EVP_MD,
    identity: *mut *const c_uchar,
    identity_bytes: *mut usize,
    session_out: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls with a connection and places to write to; the identity lies in the connection's data, which outlives
    // the handshake. The suite of its hash function is the only one, so that `_hash` is none or that.
    unsafe {
        *session_out = ptr::null_mut();
        let index = key_index().ok();
        let Some(key) = index.and_then(|index| SslRef::from_ptr(ssl).ex_data(index)) else { return 0 };
        let made = session(ssl, key);
        if made.is_null() {
            return 0;
        }
        (*identity, *identity_bytes, *session_out) = (key.identity.as_ptr(), key.identity.len(), made);
    }
    1
}

/// The server looks at an identity: only the one that was chosen is known.
///
/// # Safety
/// Called by OpenSSL, with a connection, an identity and a place to write to.
unsafe extern "C" fn find_session(
    ssl: *mut ffi::SSL,
    identity: *const c_uchar,
    identity_bytes: usize,
    session_out: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls with a connection, an identity and a place to write to.
    unsafe {
        *session_out = ptr::null_mut();
        let index = keys_index().ok();
        let keys = index.and_then(|index| SslRef::from_ptr(ssl).ex_data(index));
        let Some((key, _)) = keys.and_then(|keys| keys.chosen.as_ref()) else { return 1 };
        if identity.is_null()
            || std::slice::from_raw_parts(identity, identity_bytes) != key.identity.as_bytes()
        {
            return 1;
        }
        *session_out = session(ssl, key);
    }
    1
}
