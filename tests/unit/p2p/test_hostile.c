/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handshake that somebody recorded: whoever sends it again has a valid HELLO and a proof that was
 * valid once. The listener's challenge is another one each time, so the proof is wrong.
 */
#include <sodium.h>

#include "../../suite.h"
#include "rig.h"

#define HEAD sizeof(struct cvy_wire)

static struct rig rig;
static int client = -1;

struct recorded {
	struct cvy_wire head;
	struct cvy_hello hello;
	struct cvy_wire proof_head;
	uint8_t proof[crypto_auth_BYTES];
};

static struct recorded said;

static int asked_for_proof(struct rig *r)
{
	const struct cvy_conn *c = r->rank[0].mesh->strangers;

	return c && c->state == CVY_SHAKE_PROOF;
}

static int proven(struct rig *r)
{
	const struct cvy_peer *p = r->rank[0].mesh->peer[1];

	return p->control && p->control->state == CVY_SHAKE_WELCOME;
}

static int refused(struct rig *r)
{
	return !r->rank[0].mesh->strangers;
}

static struct cvy_wire head_of(int type, size_t bytes)
{
	return (struct cvy_wire){ .magic = CVY_WIRE_MAGIC,
				  .version = CVY_WIRE_VERSION,
				  .type = (uint16_t)type,
				  .bytes = (uint32_t)bytes,
				  .src = 1,
				  .src_inc = 101,
				  .dst_inc = 100 };
}

static void call(void)
{
	const char *why;

	client = cvy_address_connect(cvy_mesh_addr(rig.rank[0].mesh), CVY_BY_UNIX, "", &why);
	ck_assert_int_ge(client, 0);
	cvy_mesh_expect(rig.rank[0].mesh, 1, 101);
}

static void say(const void *bytes, size_t n)
{
	ck_assert_int_eq(write(client, bytes, n), (ssize_t)n);
}

static void say_both(const struct cvy_wire *head, const void *body, size_t n)
{
	say(head, sizeof(*head));
	say(body, n);
}

/* The listener's HELLO, and then what rank 1 would prove. */
static void make_proof(void)
{
	struct cvy_wire head;
	struct {
		char label[12];
		uint32_t by_dialer;
		struct cvy_hello dialer, listener;
	} t;

	memset(&t, 0, sizeof(t));
	ck_assert_int_eq(read(client, &head, HEAD), (ssize_t)HEAD);
	ck_assert_int_eq(read(client, &t.listener, sizeof(t.listener)), (ssize_t)sizeof(t.listener));
	memcpy(t.label, "covey-proof", 12);
	t.by_dialer = 1;
	t.dialer = said.hello;
	said.proof_head = head_of(CVY_WIRE_PROOF, sizeof(said.proof));
	crypto_auth(said.proof, (const uint8_t *)&t, sizeof(t), rig.rank[0].id.secret);
}

TEST(replayed_handshake_proves_nothing)
{
	struct covey_error_info info;
	struct cvy_config config;

	rig_config(&config, COVEY_TRANSPORT_AUTO, "");
	ck_assert_int_eq(cvy_loop_new(&rig.loop), 0);
	rig_open(&rig, 0, &config);
	cvy_mesh_identity(rig.rank[0].mesh, &rig.rank[0].id);
	said.head = head_of(CVY_WIRE_HELLO, sizeof(said.hello));
	said.hello = (struct cvy_hello){ .nonce = 9, .src = 1, .src_inc = 101, .dst_inc = 100 };
	memcpy(said.hello.gid, rig.rank[0].id.gid, sizeof(rig.rank[0].id.gid));
	call();
	say_both(&said.head, &said.hello, sizeof(said.hello));
	rig_run(&rig, asked_for_proof);
	make_proof();
	say_both(&said.proof_head, said.proof, sizeof(said.proof));
	rig_run(&rig, proven);
	cvy_mesh_drop(rig.rank[0].mesh, 1, 101);
	close(client);

	call();
	say_both(&said.head, &said.hello, sizeof(said.hello));
	rig_run(&rig, asked_for_proof);
	say_both(&said.proof_head, said.proof, sizeof(said.proof));
	rig_run(&rig, refused);
	cvy_errbox_get(rig.rank[0].box, &info);
	ck_assert_int_eq(info.err, COVEY_ERR_AUTH);
	ck_assert_ptr_null(rig.rank[0].mesh->peer[1]->control);
	ck_assert_int_eq(rig.rank[0].ups, 0);
	close(client);
}

SUITE_MAIN(.name = "p2p/hostile")
