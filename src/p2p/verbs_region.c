/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of a window for registration, and facts about a device from the kernel's files. Only arithmetic and text:
 * no adapter is needed.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

size_t cvy_region_bytes(const struct cvy_layout *l)
{
	size_t bytes = CVY_RDMA_REGION_MIN;

	while (bytes * (CVY_RDMA_REGIONS - 1) < l->window_bytes - l->heap)
		bytes *= 2;
	return bytes;
}

int cvy_region_count(const struct cvy_layout *l)
{
	size_t each = cvy_region_bytes(l);

	return 1 + (int)((l->window_bytes - l->heap + each - 1) / each);
}

int cvy_region_of(const struct cvy_layout *l, size_t offset)
{
	return offset < l->heap ? 0 : 1 + (int)((offset - l->heap) / cvy_region_bytes(l));
}

struct cvy_verbs_region cvy_region_get(const struct cvy_layout *l, int i)
{
	size_t each = cvy_region_bytes(l), at = l->heap + (size_t)(i - 1) * each;

	if (!i)
		return (struct cvy_verbs_region){ 0, l->heap };
	return (struct cvy_verbs_region){ at, l->window_bytes - at < each ? l->window_bytes - at : each };
}

/* ---- the wish ---- */

/* Parses up to @end, or to the end of the text. -1: not a number. */
static long number(const char *text, const char *end)
{
	char *stop;
	long n = strtol(text, &stop, 10);

	return stop == text || (end ? stop != end : *stop) || !(text[0] >= '0' && text[0] <= '9') ? -1 : n;
}

int cvy_rdma_parse(const char *text, struct cvy_rdma_wish *wish)
{
	const char *colon = strchr(text, ':'), *slash = colon ? strchr(colon, '/') : NULL;
	size_t n = colon ? (size_t)(colon - text) : strlen(text);
	long port = colon ? number(colon + 1, slash) : 0, gid = slash ? number(slash + 1, NULL) : -1;

	if (n >= sizeof(wish->name) || memchr(text, '/', n) || (n && text[0] == '.') || (colon && !n) ||
	    (colon && (port < 1 || port > 255)) || (slash && (gid < 0 || gid > 255)))
		return COVEY_ERR_INVAL;
	wish->gid = (int)gid;
	memcpy(wish->name, text, n);
	wish->name[n] = '\0';
	wish->port = (int)port;
	return 0;
}

/* ---- files ---- */

/* Names in a directory, as `a, b`; returns their number. */
static int list_names(const char *path, char *text, size_t bytes)
{
	DIR *dir = opendir(path);
	const struct dirent *d;
	size_t at = 0;
	int n = 0;

	text[0] = '\0';
	while (dir && (d = readdir(dir))) {
		if (d->d_name[0] == '.')
			continue;
		if (at < bytes)
			at += (size_t)snprintf(text + at, bytes - at, "%s%s", n ? ", " : "", d->d_name);
		n++;
	}
	if (dir)
		closedir(dir);
	return n;
}

int cvy_rdma_gid(const char *root, const char *device, int port, int index, uint8_t *gid)
{
	char path[320], text[64] = "";
	struct in6_addr addr;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s/ports/%d/gids/%d", root, device, port, index);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	text[strcspn(text, "\n")] = '\0';
	if (inet_pton(AF_INET6, text, &addr) != 1 || IN6_IS_ADDR_UNSPECIFIED(&addr))
		return 0;
	memcpy(gid, &addr, 16);
	return 1;
}

static int look_port(const char *root, const struct cvy_rdma_wish *wish, char *why, size_t bytes)
{
	char path[320], names[128];
	int port = wish->port ? wish->port : 1;
	uint8_t gid[16];

	snprintf(path, sizeof(path), "%s/%s/ports/%d", root, wish->name, port);
	if (access(path, F_OK)) {
		snprintf(path, sizeof(path), "%s/%s/ports", root, wish->name);
		list_names(path, names, sizeof(names));
		snprintf(why, bytes, "RDMA device %s has no port %d; its ports: %s", wish->name, port, names);
		return COVEY_ERR_UNSUPPORTED;
	}
	if (wish->gid >= 0 && !cvy_rdma_gid(root, wish->name, port, wish->gid, gid)) {
		snprintf(why, bytes, "GID %d of RDMA device %s, port %d, is empty or not there (rdma_device)",
			 wish->gid, wish->name, port);
		return COVEY_ERR_UNSUPPORTED;
	}
	return 0;
}

int cvy_rdma_look(const char *root, const struct cvy_rdma_wish *wish, char *why, size_t bytes)
{
	char path[320], names[128];

	if (!list_names(root, names, sizeof(names))) {
		snprintf(why, bytes, "no RDMA device on this machine (%s is empty)", root);
		return COVEY_ERR_UNSUPPORTED;
	}
	if (!wish->name[0])
		return 0;
	snprintf(path, sizeof(path), "%s/%s", root, wish->name);
	if (access(path, F_OK)) {
		snprintf(why, bytes, "no RDMA device %s; there are: %s (rdma_device)", wish->name, names);
		return COVEY_ERR_UNSUPPORTED;
	}
	return look_port(root, wish, why, bytes);
}

/* ---- addresses ---- */

void cvy_rdma_map(const struct sockaddr *addr, uint8_t *ip)
{
	memset(ip, 0, 16);
	if (addr->sa_family == AF_INET) {
		ip[10] = ip[11] = 0xff;
		memcpy(ip + 12, &((const struct sockaddr_in *)(const void *)addr)->sin_addr, 4);
	} else {
		memcpy(ip, &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr, 16);
	}
}

void cvy_rdma_unmap(const uint8_t *ip, uint16_t port, struct sockaddr_storage *addr)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)addr;
	struct in6_addr as;

	memset(addr, 0, sizeof(*addr));
	memcpy(&as, ip, sizeof(as));
	if (IN6_IS_ADDR_V4MAPPED(&as)) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		memcpy(&v4->sin_addr, ip + 12, 4);
	} else {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		v6->sin6_addr = as;
	}
}

uint8_t cvy_rdma_ack_timeout(int ms)
{
	uint8_t t = 8; /* 1 ms */

	while (t < 21 && (CVY_RDMA_RETRY + 1) * (4.096e-3 * (double)(1u << (t + 1))) <= (double)ms)
		t++;
	return t;
}
