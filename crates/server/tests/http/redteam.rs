//! Attackers with every kind of credential try every route of `/openapi.json`: none gets beyond its role, nothing of the victim
//! is shown or changed, nothing fails with 5xx, and those who may work go on while others flood the server.
//!
//! `REDTEAM_REQUESTS=100000 cargo test -p ff-server --test http redteam` floods for longer; `cargo xtask redteam` does the
//! same to a server of its own process and watches its memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use ff_core::Role;
use ff_core::op::{Method, OPERATIONS, OperationInfo};
use ff_store::memory::MemoryStore;
use serde_json::{Value, json};

use crate::strangers::documents;
use crate::support::{ADMIN, Answer, Client, Running, with_tokens, within};
use crate::sweep::{body, path};

/// Stands in everything that the victim says.
const MARK: &str = "victims-own-words";
/// Longer than a test takes.
const LEASE_TTL_MS: i64 = 600_000;

/// Everything that the victim has, with the ids that name it: an attacker is assumed to know all of them.
struct Victim {
    admin: Client,
    /// An execution in hand, and its fence.
    execution: String,
    fence: Value,
    suspended: String,
    waitpoint: String,
    waitpoint_token: String,
    flow: String,
}

impl Victim {
    async fn new(server: &Running) -> Self {
        let admin = server.client_with(ADMIN);
        let post = async |path: &str, body: Value| admin.post(path, &body).await.ok();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let worker = json!({ "namespace": "ours", "worker_id": "w", "lanes": ["default"], "nonce": MARK,
            "lease_ttl_ms": LEASE_TTL_MS });
        let put = admin.with("content-type", "application/json");
        put.send(hyper::Method::PUT, "/v1/workers/w1", worker.to_string()).await.ok();
        let claim = async |kind: &str| {
            let execution = json!({ "kind": kind, "namespace": "ours", "input": MARK, "tags": { "mark": MARK } });
            post("/v1/executions", execution).await;
            let ask = json!({ "namespace": "ours", "lanes": ["default"], "kinds": [kind], "wait_ms": 10_000,
                "lease_ttl_ms": LEASE_TTL_MS });
            post("/v1/workers/w1/claim", ask).await["tasks"][0].clone()
        };
        let (held, parked) = (claim(MARK).await, claim("parks").await);
        let suspended = text(&parked["execution_id"]);
        let suspend = json!({ "fence": parked["fence"], "reason": "approval", "condition": { "any": [] },
            "question": MARK });
        let asked = post(&format!("/v1/executions/{suspended}/suspend"), suspend).await;
        let flow = post("/v1/flows", json!({ "kind": MARK, "namespace": "ours" })).await;
        let named = |more: Value| {
            let mut named = json!({ "name": "n1", "namespace": "ours" });
            named.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            named
        };
        post("/v1/budgets", named(json!({ "dimensions": { MARK: { "hard": 7 } } }))).await;
        post("/v1/quotas", named(json!({ "max_requests": 7 }))).await;
        post("/v1/providers", named(json!({ "max_requests": 7 }))).await;
        let template = json!({ "execution": { "kind": MARK } });
        let schedule = json!({ "spec": { "every_ms": 86_400_000 }, "template": template });
        post("/v1/schedules", named(schedule)).await;
        post("/v1/hooks", named(json!({ "target": template }))).await;
        post("/v1/subscriptions", named(json!({ "target": template }))).await;
        Self {
            execution: text(&held["execution_id"]),
            fence: held["fence"].clone(),
            suspended,
            waitpoint: text(&asked["waitpoint_id"]),
            waitpoint_token: text(&asked["token"]),
            flow: text(&flow["flow_id"]),
            admin,
        }
    }

    /// A call of an operation that would have its effect, or show something, if its caller were allowed.
    fn call(&self, info: &OperationInfo) -> (String, Value) {
        let of_suspended = matches!(
            info.name,
            "deliver_signal"
                | "resume_execution"
                | "close_waitpoint"
                | "get_waitpoint_token"
                | "list_pending_waitpoints"
        );
        let execution = if of_suspended { &self.suspended } else { &self.execution };
        let mut body = body(info.name, execution);
        if body.get("fence").is_some() {
            body["fence"] = self.fence.clone();
        }
        (path(info, execution, &self.flow, &self.waitpoint), body)
    }

    async fn token(&self, body: Value) -> String {
        self.admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned()
    }
}

/// How an attacker is refused.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// The server does not know it.
    Unknown,
    /// Its role is too small.
    Forbidden,
    /// It is somebody, elsewhere.
    Elsewhere,
}

struct Attacker {
    name: &'static str,
    client: Client,
    /// Its role in the victim's namespace, if it has one there.
    role: Option<Role>,
    fate: Fate,
}

/// Callers that want more than they may have.
async fn attackers(server: &Running, victim: &Victim) -> Vec<Attacker> {
    let mut attackers = Vec::new();
    let mut unknown = |name, client| attackers.push(Attacker { name, client, role: None, fate: Fate::Unknown });
    unknown("nobody", server.client());
    unknown("garbage", server.client_with("garbage"));
    unknown("invented", server.client_with(&format!("ff_{}_{}", "0".repeat(32), "0".repeat(64))));
    unknown("another scheme", server.client().with("authorization", &format!("Basic {ADMIN}")));
    unknown("two headers", server.client_with("garbage").with("authorization", &format!("Bearer {ADMIN}")));
    unknown("a waitpoint's token as an API token", server.client_with(&victim.waitpoint_token));
    let admin = victim.token(json!({ "name": "page", "role": "admin" })).await;
    let begun = server.client().post("/v1/session", &json!({ "token": admin })).await;
    let cookie = begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let (kept, proof) = cookie.rsplit_once('_').unwrap();
    unknown("a forged session", server.client().with("cookie", &format!("{kept}_{}", "0".repeat(proof.len()))));
    let (kept, end) = kept.rsplit_once('_').unwrap();
    let longer = format!("{kept}_9{end}_{proof}");
    unknown("a session that was prolonged", server.client().with("cookie", &longer));
    let revoked = victim.token(json!({ "name": "gone", "role": "admin" })).await;
    victim.admin.send(hyper::Method::DELETE, "/v1/admin/tokens/gone", "").await.ok();
    let gone = server.client_with(&revoked);
    within(async { while gone.get("/v1/executions").await.status == 200 {} }).await;
    unknown("a revoked token", gone);
    for role in [Role::Reader, Role::Submitter, Role::Worker, Role::Approver, Role::Operator] {
        let token = victim.token(json!({ "name": role.as_str(), "namespace": "ours", "role": role })).await;
        let client = server.client_with(&token);
        attackers.push(Attacker { name: role.as_str(), client, role: Some(role), fate: Fate::Forbidden });
        let name = format!("their-{role}");
        let token = victim.token(json!({ "name": name, "namespace": "theirs", "role": role })).await;
        let client = server.client_with(&token);
        attackers.push(Attacker {
            name: "a token of another namespace",
            client,
            role: Some(role),
            fate: Fate::Elsewhere,
        });
    }
    let lanes = json!({ "name": "lane", "namespace": "ours", "role": "operator", "lanes": ["elsewhere"] });
    let client = server.client_with(&victim.token(lanes).await);
    attackers.push(Attacker { name: "a token of another lane", client, role: None, fate: Fate::Elsewhere });
    let page = server.client().with("cookie", &cookie).with("origin", "https://evil.example");
    attackers.push(Attacker { name: "another page with a session", client: page, role: None, fate: Fate::Elsewhere });
    attackers
}

async fn send(client: &Client, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
    let typed = client.with("content-type", "application/json");
    typed.send(method.parse().unwrap(), path, body).await
}

/// No answer to an attacker fails, tells a secret, or anything of the victim's.
fn is_harmless(answer: &Answer, what: &str) {
    leaves_the_victim_alone(answer, what);
    let text = String::from_utf8_lossy(&answer.body);
    assert!(!crate::canary::tells(&text), "{what} shows a secret: {text}");
}

/// The same for a caller that made something in its own namespace: the answer may tell the secret of that.
fn leaves_the_victim_alone(answer: &Answer, what: &str) {
    assert!(answer.status < 500, "{what}: {} {:?}", answer.status, answer.body);
    let text = String::from_utf8_lossy(&answer.body);
    assert!(!text.contains(MARK), "{what} shows what is the victim's: {text}");
}

/// The operations of the document that the server serves, by name; others have no entry in the list of operations.
async fn routes(server: &Running) -> Vec<(String, String, Option<&'static OperationInfo>)> {
    let document = server.client().get("/openapi.json").await.ok();
    let by_name: BTreeMap<&str, &'static OperationInfo> = OPERATIONS.iter().map(|info| (info.name, info)).collect();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let info = by_name.get(operation["operationId"].as_str().unwrap()).copied();
            routes.push((method.to_uppercase(), path.clone(), info));
        }
    }
    assert!(routes.len() >= OPERATIONS.len(), "the document has every operation");
    routes
}

#[tokio::test]
async fn nobody_gets_beyond_its_role() {
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(with_tokens(), store.clone()).await;
    let victim = Victim::new(&server).await;
    let attackers = attackers(&server, &victim).await;
    let before = documents(&store);
    let mut tried = 0;
    for (method, _, info) in routes(&server).await {
        let Some(info) = info else { continue };
        let (path, body) = victim.call(info);
        let body = if matches!(info.method, Method::Get | Method::Delete) { String::new() } else { body.to_string() };
        for Attacker { name, client, role, fate } in &attackers {
            let what = format!("{} by {name} ({role:?})", info.name);
            let may = |role: Role| info.any_role || role.allows(info.role) || info.own && role == Role::Submitter;
            match fate {
                Fate::Unknown => {
                    let answer = send(client, &method, &path, body.clone()).await;
                    is_harmless(&answer, &what);
                    // An address that asks too often where no token is needed is slowed down.
                    let slowed = info.waitpoint_token && answer.status == 429;
                    assert!(slowed || answer.status == 401 && answer.code() == "unauthenticated", "{what}");
                }
                Fate::Forbidden if role.is_some_and(may) => continue,
                Fate::Forbidden => {
                    let answer = send(client, &method, &path, body.clone()).await;
                    is_harmless(&answer, &what);
                    assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden"), "{what}");
                }
                // What it does elsewhere is its own affair; naming the victim's namespace is refused.
                Fate::Elsewhere => {
                    // Another page can send a browser to any address, and reads no answer.
                    let changes = !matches!(info.method, Method::Get);
                    if *name == "another page with a session" && !changes {
                        continue;
                    }
                    // Lanes are where executions are; budgets and flows are those of the namespace. A token limited to lanes
                    // reads all of its namespace.
                    let of_execution = info.path.contains("{execution_id}");
                    if *name == "a token of another lane" && !(of_execution && changes) {
                        continue;
                    }
                    let answer = send(client, &method, &path, body.clone()).await;
                    // A ticket, a token, a hook and a waitpoint of its own namespace are its own, with their secrets.
                    if answer.status < 300 && changes {
                        leaves_the_victim_alone(&answer, &what);
                    } else {
                        is_harmless(&answer, &what);
                    }
                    let separator = if path.contains('?') { '&' } else { '?' };
                    let named = format!("{path}{separator}namespace=ours");
                    if *name != "a token of another lane" {
                        let answer = send(client, &method, &named, body.clone()).await;
                        is_harmless(&answer, &what);
                        assert!((400..500).contains(&answer.status), "{what}: {}", answer.status);
                    }
                }
            }
            tried += 1;
        }
    }
    assert!(tried > 2_000, "{tried}");
    unchanged(&before, &documents(&store));
    server.stop().await;
}

/// Whatever the victim had is as it was. Attackers may have made things of their own.
fn unchanged(before: &[(String, Bytes)], after: &[(String, Bytes)]) {
    let after: BTreeMap<&str, &Bytes> = after.iter().map(|(key, body)| (key.as_str(), body)).collect();
    for (key, body) in before {
        assert_eq!(after.get(key.as_str()), Some(&body), "{key} was changed");
    }
}

#[tokio::test]
async fn a_waitpoint_token_is_good_for_its_waitpoint_and_for_nothing_else() {
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(with_tokens(), store.clone()).await;
    let victim = Victim::new(&server).await;
    let before = documents(&store);
    let stranger = server.client();
    let token = &victim.waitpoint_token;
    for (method, _, info) in routes(&server).await {
        let Some(info) = info.filter(|info| !info.waitpoint_token) else { continue };
        let (path, mut body) = victim.call(info);
        body["token"] = json!(token);
        let query = format!("{path}{}token={token}", if path.contains('?') { '&' } else { '?' });
        for (path, body) in [(path.clone(), body.to_string()), (query, String::new())] {
            let answer = send(&stranger, &method, &path, body).await;
            is_harmless(&answer, info.name);
            assert_eq!(answer.status, 401, "{}", info.name);
        }
    }
    let flipped =
        token.strip_suffix(|_: char| true).map(|kept| format!("{kept}{}", if token.ends_with('0') { 1 } else { 0 }));
    let (kid, proof) = token.split_once(':').unwrap();
    let forged = [
        flipped.unwrap(),
        format!("{kid}:"),
        format!("k9:{proof}"),
        format!("{kid}:{}", proof.to_uppercase() + "00"),
        String::new(),
        "x".repeat(10_000),
    ];
    for forged in forged {
        let signal = json!({ "name": "approve", "token": forged });
        for path in [format!("/v1/signals/{}", victim.waitpoint), format!("/v1/executions/{}/signal", victim.suspended)]
        {
            let answer = send(&stranger, "POST", &path, signal.to_string()).await;
            is_harmless(&answer, &path);
            assert!(matches!(answer.status, 400 | 401 | 403 | 429), "{path}: {} {:?}", answer.status, answer.body);
        }
    }
    for elsewhere in [crate::sweep::NOBODY, victim.execution.as_str()] {
        let signal = json!({ "name": "approve", "token": token });
        let answer = send(&stranger, "POST", &format!("/v1/signals/{elsewhere}"), signal.to_string()).await;
        is_harmless(&answer, elsewhere);
        assert!(matches!(answer.status, 400..=429), "{}", answer.status);
    }
    unchanged(&before, &documents(&store));
    server.stop().await;
}

#[tokio::test]
async fn other_methods_and_odd_paths_reveal_nothing() {
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(with_tokens(), store.clone()).await;
    let victim = Victim::new(&server).await;
    let reader = victim.token(json!({ "name": "r", "namespace": "theirs", "role": "reader" })).await;
    let clients = [server.client(), server.client_with(&reader)];
    let before = documents(&store);
    // The description of the API is public, and says how secrets look.
    let described = |(_, path, _): &(String, String, Option<&OperationInfo>)| path != "/openapi.json";
    for (_, path, info) in routes(&server).await.into_iter().filter(described) {
        let real = info.map_or(path.clone(), |info| victim.call(info).0);
        for client in &clients {
            for method in ["OPTIONS", "TRACE", "PATCH", "PROPFIND", "HEAD"] {
                is_harmless(&send(client, method, &real, "").await, &format!("{method} {real}"));
            }
            for odd in [
                format!("{real}/"),
                format!("/{real}"),
                format!("{real}/../{MARK}"),
                real.replace("/v1/", "/v1/%2e%2e/v1/"),
            ] {
                // The words of the path may come back in the refusal; they are the attacker's own.
                let answer = send(client, "GET", &odd, "").await;
                assert!(answer.status < 500 && !crate::canary::tells(&String::from_utf8_lossy(&answer.body)), "{odd}");
            }
        }
    }
    unchanged(&before, &documents(&store));
    server.stop().await;
}

/// How many attackers ask at once.
const FLOODERS: usize = 32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_may_work_go_on_while_others_flood_the_server() {
    let requests = std::env::var("REDTEAM_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000);
    let store = Arc::new(MemoryStore::new());
    let server = Running::start_on(with_tokens(), store.clone()).await;
    let victim = Victim::new(&server).await;
    let reader = victim.token(json!({ "name": "r", "namespace": "theirs", "role": "reader" })).await;
    let floods: Vec<(Client, hyper::Method, String, Bytes)> = vec![
        (server.client(), hyper::Method::GET, "/v1/executions".into(), Bytes::new()),
        (server.client_with("garbage"), hyper::Method::POST, "/v1/executions".into(), vec![b'['; 1_000].into()),
        (
            server.client_with(&format!("ff_{}_{}", "1".repeat(32), "2".repeat(64))),
            hyper::Method::GET,
            "/v1/executions".into(),
            Bytes::new(),
        ),
        (
            server.client(),
            hyper::Method::POST,
            format!("/v1/signals/{}", victim.waitpoint),
            json!({ "name": "approve", "token": "k1:00" }).to_string().into(),
        ),
        (server.client_with(&reader), hyper::Method::GET, "/v1/executions?limit=1000".into(), Bytes::new()),
        (server.client_with(&reader), hyper::Method::POST, "/v1/executions".into(), vec![b'{'; 1_000].into()),
        (
            server.client_with(&reader),
            hyper::Method::GET,
            format!("/v1/executions/{}/wait?wait_ms=1", victim.execution),
            Bytes::new(),
        ),
        (server.client(), hyper::Method::GET, "/metrics".into(), Bytes::new()),
    ];
    let (floods, left) = (Arc::new(floods), Arc::new(AtomicUsize::new(requests)));
    let over = Arc::new(AtomicBool::new(false));
    let flooders: Vec<_> = (0..FLOODERS)
        .map(|_| {
            let (floods, left) = (floods.clone(), left.clone());
            tokio::spawn(async move {
                let mut statuses = BTreeMap::new();
                while let Ok(number) =
                    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                {
                    let (client, method, path, body) = &floods[number % floods.len()];
                    let answer = client.with("content-type", "application/json");
                    let answer = answer.send(method.clone(), path, body.clone()).await;
                    *statuses.entry(answer.status).or_insert(0usize) += 1;
                }
                statuses
            })
        })
        .collect();
    let worker = {
        let (admin, over) = (victim.admin.clone(), over.clone());
        tokio::spawn(async move {
            let mut done = 0usize;
            while !over.load(Ordering::Relaxed) {
                let submit = json!({ "kind": "works", "namespace": "busy", "lane": "l" });
                admin.post("/v1/executions", &submit).await.ok();
                let ask = json!({ "namespace": "busy", "lanes": ["l"], "wait_ms": 10_000 });
                let task = admin.post("/v1/workers/b/claim", &ask).await.ok()["tasks"][0].clone();
                let complete = format!("/v1/executions/{}/complete", task["execution_id"].as_str().unwrap());
                admin.post(&complete, &json!({ "fence": task["fence"] })).await.ok();
                done += 1;
            }
            done
        })
    };
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for flooder in flooders {
        for (status, count) in flooder.await.unwrap() {
            *statuses.entry(status).or_default() += count;
        }
    }
    over.store(true, Ordering::Relaxed);
    let done = worker.await.unwrap();
    assert!(statuses.keys().all(|status| *status < 500), "{statuses:?}");
    assert_eq!(statuses.values().sum::<usize>(), requests);
    // One who asks one thing after the other, beside so many: its turn comes as often as everybody's, or nearly so. Each
    // task is three calls.
    let fair = requests / FLOODERS / 3;
    assert!(done * 8 >= fair, "{done} tasks were done beside {requests} requests, of {fair}: {statuses:?}");
    // A flood leaves nothing behind: whatever the store has is the victim's.
    let listed = victim.admin.get("/v1/executions?namespace=theirs").await.ok();
    assert_eq!(listed["items"], json!([]));
    server.stop().await;
}
