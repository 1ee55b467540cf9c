//! Sessions of browsers, and the page that begins them.

use serde_json::json;

use crate::support::{ADMIN, Answer, Client, Running, settings, with_tokens};

/// The cookie that an answer sets, as a browser sends it back.
fn cookie(answer: &Answer) -> String {
    let set = answer.headers["set-cookie"].to_str().unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

async fn begin(server: &Running, token: &str) -> Client {
    let begun = server.client().post("/v1/session", &json!({ "token": token })).await;
    let cookie = cookie(&begun);
    assert!(!cookie.contains(token), "a session is not the token itself");
    begun.ok();
    server.client().with("cookie", &cookie)
}

#[tokio::test]
async fn a_token_becomes_a_session_that_ends_with_its_revocation() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let made = admin.post("/v1/admin/tokens", &json!({ "name": "ada", "role": "operator" })).await.ok();
    let browser = begin(&server, made["secret"].as_str().unwrap()).await;
    let seen = browser.get("/v1/session").await.ok();
    assert_eq!(
        (&seen["name"], &seen["role"], &seen["tokens_required"]),
        (&json!("ada"), &json!("operator"), &json!(true))
    );
    assert_eq!(browser.get("/v1/executions").await.status, 200);
    let own = browser.with("sec-fetch-site", "same-origin");
    assert_eq!(own.post("/v1/lanes/fast/pause", &json!({})).await.status, 200);
    assert_eq!(browser.get("/v1/admin/tokens").await.status, 403);
    admin.send(hyper::Method::DELETE, "/v1/admin/tokens/ada", "").await.ok();
    // A revocation holds everywhere within a second.
    let ended = async { while browser.get("/v1/executions").await.status == 200 {} };
    crate::support::within(ended).await;
    assert_eq!(browser.get("/v1/session").await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_session_of_a_configured_token_is_an_administrators() {
    let server = Running::start(with_tokens()).await;
    let browser = begin(&server, ADMIN).await;
    assert_eq!(browser.get("/v1/session").await.ok()["role"], "admin");
    assert_eq!(browser.get("/v1/admin/tokens").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing_with_somebodys_session() {
    let server = Running::start(with_tokens()).await;
    let browser = begin(&server, ADMIN).await;
    for (header, value) in
        [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site")]
    {
        let forged = browser.with(header, value);
        assert_eq!(forged.post("/v1/lanes/fast/pause", &json!({})).await.status, 403, "{header}: {value}");
        assert_eq!(forged.get("/v1/lanes").await.status, 200);
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_session_is_refused_like_a_bad_token() {
    let server = Running::start(with_tokens()).await;
    let refused = server.client().post("/v1/session", &json!({ "token": "nonsense" })).await;
    assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"));
    let name = format!("ff_session_{}", server.address.port());
    for value in ["x", "ffs1_00000000000000000000000000000000_9999999999999_00"] {
        let browser = server.client().with("cookie", &format!("{name}={value}"));
        assert_eq!(browser.get("/v1/executions").await.status, 401, "{value}");
    }
    assert_eq!(server.client().post("/v1/session", &json!({ "secret": "x" })).await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn without_tokens_everybody_here_is_known_and_an_old_cookie_means_nothing() {
    let server = Running::start(settings()).await;
    let name = format!("ff_session_{}", server.address.port());
    let browser = server.client().with("cookie", &format!("{name}=left-over"));
    let seen = browser.get("/v1/session").await.ok();
    assert_eq!((&seen["role"], &seen["tokens_required"]), (&json!("admin"), &json!(false)));
    server.stop().await;
}

#[cfg(feature = "dashboard")]
#[tokio::test]
async fn the_page_is_there_for_everybody_and_shows_nothing_by_itself() {
    let server = Running::start(with_tokens()).await;
    for path in ["/", "/executions", "/executions/0000-x?tab=stream", "/approvals"] {
        let page = server.client().get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    let text = server.client().get("/").await.body;
    let text = std::str::from_utf8(&text).unwrap();
    let script = text.split("src=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let script = server.client().get(script).await;
    assert_eq!(
        (script.status, &script.headers["content-type"]),
        (200, &"text/javascript; charset=utf-8".parse().unwrap())
    );
    assert_eq!(server.client().get("/nowhere").await.status, 404);
    server.stop().await;
}
