/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of the store client. hiredis moves the bytes. This file decides on trust with OpenSSL itself, because hiredis
 * does not check the name in a certificate and does not report why one was refused. A refusal is final for a client
 * that was never served, so that a join ends with the cause. Later the client retries: certificates are renewed.
 */
#include "redis_tls.h"

#ifdef COVEY_TLS

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#include "redis.h"

struct cvy_redis_tls {
	SSL_CTX *ctx;
};

static int bad_file(struct cvy_errbox *box, const char *what, const char *file)
{
	const char *why = ERR_reason_error_string(ERR_peek_last_error());

	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "store URL: %s %.120s cannot be used: %s", what, file,
			why ? why : "unknown error");
}

static int load(SSL_CTX *ctx, const struct cvy_redis_url *u, struct cvy_errbox *box)
{
	ERR_clear_error();
	if (!SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION))
		return cvy_fail(box, COVEY_ERR_UNSUPPORTED, -1, 0, "OpenSSL has no TLS 1.2 here");
	if (u->ca[0] ? !SSL_CTX_load_verify_locations(ctx, u->ca, NULL) : !SSL_CTX_set_default_verify_paths(ctx))
		return bad_file(box, "the authority", u->ca[0] ? u->ca : "of the system");
	if (!u->cert[0] != !u->key[0])
		return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "store URL: cert and key must be given together");
	if (u->cert[0] && SSL_CTX_use_certificate_chain_file(ctx, u->cert) != 1)
		return bad_file(box, "the certificate", u->cert);
	if (u->key[0] && SSL_CTX_use_PrivateKey_file(ctx, u->key, SSL_FILETYPE_PEM) != 1)
		return bad_file(box, "the key", u->key);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	return 0;
}

int cvy_redis_tls_open(const struct cvy_redis_url *u, struct cvy_errbox *box, struct cvy_redis_tls **out)
{
	struct cvy_redis_tls *tls = calloc(1, sizeof(*tls));
	int err;

	if (!tls)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "out of memory in the store client");
	tls->ctx = SSL_CTX_new(TLS_client_method());
	err = tls->ctx ? load(tls->ctx, u, box) : cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "OpenSSL gives no TLS context");
	if (err)
		cvy_redis_tls_close(tls);
	else
		*out = tls;
	return err;
}

void cvy_redis_tls_close(struct cvy_redis_tls *tls)
{
	if (tls)
		SSL_CTX_free(tls->ctx);
	free(tls);
}

/* The certificate must bear the host of the URL, a name or an address. */
static int expect_host(SSL *ssl, const char *host)
{
	struct in6_addr six;
	struct in_addr four;

	if (inet_pton(AF_INET, host, &four) == 1 || inet_pton(AF_INET6, host, &six) == 1)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host);
	SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
	return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

void cvy_redis_tls_start(struct conn *k)
{
	struct redis *r = k->redis;
	SSL *ssl = SSL_new(r->tls->ctx);

	ERR_clear_error();
	if (!ssl || !expect_host(ssl, r->url.server.host)) {
		SSL_free(ssl);
		cvy_redis_break(k, COVEY_ERR_STORE, 0, "out of memory in the store client");
		return;
	}
	k->ssl = ssl; /* hiredis frees it with its context; freed here if hiredis refuses it */
	if (redisInitiateSSL(k->c, ssl) == REDIS_OK)
		return;
	if (!cvy_redis_tls_broke(k))
		cvy_redis_break(k, COVEY_ERR_STORE, 0, k->c->errstr);
	k->ssl = NULL;
	if (!k->c->privctx)
		SSL_free(ssl);
}

int cvy_redis_tls_reads(const struct conn *k)
{
	return k->ssl && SSL_want_read(k->ssl);
}

int cvy_redis_tls_pending(const struct conn *k)
{
	return k->ssl && SSL_pending(k->ssl) > 0;
}

int cvy_redis_tls_hangs(const struct conn *k)
{
	return k->ssl && !SSL_is_init_finished(k->ssl);
}

int cvy_redis_tls_broke(struct conn *k)
{
	long verdict = k->ssl ? SSL_get_verify_result(k->ssl) : X509_V_OK;
	unsigned long error = ERR_peek_last_error();
	int served = k->redis->served, reason;
	char cause[400], byte;
	const char *why;

	if (!k->ssl)
		return 0;
	if (!error) { /* a write failed: an alert with the cause may have arrived */
		SSL_peek(k->ssl, &byte, 1);
		error = ERR_peek_last_error();
	}
	why = ERR_reason_error_string(error);
	reason = ERR_GET_REASON(error);
	if (verdict != X509_V_OK) {
		snprintf(cause, sizeof(cause), "the certificate of the store %.200s is refused: %s",
			 k->redis->url.server.host, X509_verify_cert_error_string(verdict));
		cvy_redis_break(k, COVEY_ERR_AUTH, !served, cause);
	} else if (cvy_redis_tls_hangs(k) &&
		   (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_UNEXPECTED_MESSAGE)) {
		cvy_redis_break(k, COVEY_ERR_INVAL, !served,
				"the store does not speak TLS on this port: name its tls-port, or use redis://");
	} else if (error) {
		/* With TLS 1.3 a server that wants our certificate sends an alert after the handshake. */
		snprintf(cause, sizeof(cause), "the store ends the TLS connection: %s", why ? why : "unknown error");
		cvy_redis_break(k, reason >= SSL_AD_REASON_OFFSET ? COVEY_ERR_AUTH : COVEY_ERR_STORE,
				reason >= SSL_AD_REASON_OFFSET && !served, cause);
	} else if (cvy_redis_tls_hangs(k)) {
		cvy_redis_break(k, COVEY_ERR_STORE, 0,
				"the store ends the connection in the TLS handshake: does it speak TLS on this port?");
	} else {
		return 0;
	}
	return 1;
}

#else

#pragma GCC diagnostic ignored "-Wunused-parameter"

int cvy_redis_tls_open(const struct cvy_redis_url *u, struct cvy_errbox *box, struct cvy_redis_tls **out)
{
	return cvy_fail(box, COVEY_ERR_UNSUPPORTED, -1, 0,
			"store URL: TLS (rediss) is not in this build, since hiredis_ssl (hiredis 1.0 or later) or "
			"OpenSSL's headers were not there: use a private network or a tunnel");
}

void cvy_redis_tls_close(struct cvy_redis_tls *tls)
{
}

void cvy_redis_tls_start(struct conn *k)
{
}

int cvy_redis_tls_reads(const struct conn *k)
{
	return 0;
}

int cvy_redis_tls_pending(const struct conn *k)
{
	return 0;
}

int cvy_redis_tls_hangs(const struct conn *k)
{
	return 0;
}

int cvy_redis_tls_broke(struct conn *k)
{
	return 0;
}

#endif
