/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the device and its address. Connections are made by rdma_cm, which knows devices by their addresses. So every
 * address of this machine is bound once to see which device it belongs to, and the best one is kept.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "interface.h"
#include "log.h"
#include "verbs.h"

#define SYS_DEVICES "/sys/class/infiniband"
#define CM_NODE "/dev/infiniband/rdma_cm"
#define BACKLOG 256

static int near_us(const char *device)
{
	unsigned int cpu, node;
	char path[160];
	int its = -1;
	FILE *file;

	snprintf(path, sizeof(path), SYS_DEVICES "/%s/device/numa_node", device);
	file = fopen(path, "re");
	if (file && fscanf(file, "%d", &its) != 1)
		its = -1;
	if (file)
		fclose(file);
	return its >= 0 && !getcpu(&cpu, &node) && (unsigned int)its == node;
}

/* 0: of no use. Preferred: the device of the address that peers dial, then one near this processor, then IPv4. */
static int liking(struct cvy_rdma *rdma, const struct cvy_rdma_wish *wish, const struct ifaddrs *i)
{
	int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC, much = 0;
	uint8_t gid[16], ip[16];
	struct rdma_cm_id *id;
	const char *name;

	if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) || (family != AF_INET && family != AF_INET6))
		return 0;
	if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)(void *)i->ifa_addr)->sin6_addr))
		return 0; /* means nothing on another host */
	if (rdma->api->rdma_create_id(rdma->channel, &id, NULL, RDMA_PS_TCP))
		return 0;
	if (rdma->api->rdma_bind_addr(id, i->ifa_addr) || !id->verbs)
		goto out;
	name = rdma->api->ibv_get_device_name(id->verbs->device);
	if ((wish->name[0] && strcmp(wish->name, name)) || (wish->port && wish->port != id->port_num))
		goto out;
	cvy_rdma_map(i->ifa_addr, ip);
	if (wish->gid >= 0 && (!cvy_rdma_gid(SYS_DEVICES, name, id->port_num, wish->gid, gid) || memcmp(gid, ip, 16)))
		goto out;
	much = 1 + (family == AF_INET) + 2 * near_us(name) +
	       4 * cvy_interface_fits(wish->interface, i->ifa_name, i->ifa_addr);
out:
	rdma->api->rdma_destroy_id(id);
	return much;
}

static int choose(struct cvy_rdma *rdma, const struct cvy_rdma_wish *wish, char *why, size_t bytes)
{
	struct ifaddrs *all = NULL;
	int best = 0;

	if (getifaddrs(&all))
		all = NULL;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		int much = liking(rdma, wish, i);

		if (much <= best)
			continue;
		best = much;
		memcpy(&rdma->addr, i->ifa_addr,
		       i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	}
	freeifaddrs(all);
	if (best)
		return 0;
	if (wish->gid >= 0)
		snprintf(why, bytes, "GID %d of %s belongs to no address that is up: rdma_cm connects by addresses",
			 wish->gid, wish->name[0] ? wish->name : "any RDMA device");
	else
		snprintf(why, bytes, "%s%s has no address that is up: rdma_cm connects by addresses",
			 wish->name[0] ? "RDMA device " : "no RDMA device here", wish->name);
	return COVEY_ERR_UNSUPPORTED;
}

static int listen_at(struct cvy_rdma *rdma, char *why, size_t bytes)
{
	const struct cvy_verbs_api *api = rdma->api;
	uint16_t port;

	if (api->rdma_create_id(rdma->channel, &rdma->listener, NULL, RDMA_PS_TCP) ||
	    api->rdma_bind_addr(rdma->listener, (struct sockaddr *)&rdma->addr) ||
	    api->rdma_listen(rdma->listener, BACKLOG)) {
		snprintf(why, bytes, "listening by rdma_cm: %s", strerror(errno));
		return COVEY_ERR_UNSUPPORTED;
	}
	port = api->rdma_get_src_port(rdma->listener);
	if (rdma->addr.ss_family == AF_INET)
		((struct sockaddr_in *)&rdma->addr)->sin_port = port;
	else
		((struct sockaddr_in6 *)&rdma->addr)->sin6_port = port;
	return 0;
}

/* As the header does it, but with the symbol of our table. */
static int query_port(const struct cvy_rdma *rdma, uint8_t port, struct ibv_port_attr *attr)
{
	struct verbs_context *more = verbs_get_ctx(rdma->context);

	memset(attr, 0, sizeof(*attr));
	/* the table grows at its front: the library says how much of it is there */
	if (more && more->sz >= sizeof(*more) - offsetof(struct verbs_context, query_port) && more->query_port)
		return more->query_port(rdma->context, port, attr, sizeof(*attr));
	return (rdma->api->ibv_query_port)(rdma->context, port, (struct _compat_ibv_port_attr *)attr);
}

static void describe(struct cvy_rdma *rdma)
{
	const struct sockaddr_storage *a = &rdma->addr;
	const char *kind = rdma->port.link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand";
	char addr[INET6_ADDRSTRLEN] = "";

	inet_ntop(a->ss_family,
		  a->ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
					  : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr,
		  addr, sizeof(addr));
	if (rdma->context->device->transport_type == IBV_TRANSPORT_IWARP)
		kind = "iWARP";
	snprintf(rdma->what, sizeof(rdma->what), "RDMA device %.60s, port %d, MTU %d, %s, address %s",
		 rdma->api->ibv_get_device_name(rdma->context->device), rdma->listener->port_num,
		 128 << rdma->port.active_mtu, kind, addr);
}

static int ask_device(struct cvy_rdma *rdma, char *why, size_t bytes)
{
	const char *name = rdma->api->ibv_get_device_name(rdma->context->device);
	int port = rdma->listener->port_num;

	if (rdma->api->ibv_query_device(rdma->context, &rdma->device) || query_port(rdma, (uint8_t)port, &rdma->port)) {
		snprintf(why, bytes, "RDMA device %s, port %d, does not answer: %s", name, port, strerror(errno));
		return COVEY_ERR_UNSUPPORTED;
	}
	if (rdma->port.state != IBV_PORT_ACTIVE) {
		snprintf(why, bytes, "RDMA device %s: port %d is not active", name, port);
		return COVEY_ERR_UNSUPPORTED;
	}
	rdma->depth = rdma->device.max_qp_wr < CVY_RDMA_DEPTH ? rdma->device.max_qp_wr : CVY_RDMA_DEPTH;
	if (rdma->depth < CVY_RDMA_DEPTH_MIN) {
		snprintf(why, bytes, "RDMA device %s has queues of %d entries: %d are needed", name, rdma->depth,
			 CVY_RDMA_DEPTH_MIN);
		return COVEY_ERR_UNSUPPORTED;
	}
	describe(rdma);
	return 0;
}

struct ibv_mr *cvy_rdma_register(struct cvy_rdma *rdma, void *at, size_t bytes, int access, char *why, size_t room)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
	struct ibv_mr *mr = NULL;
	int err = EINVAL;

	if (bytes <= rdma->device.max_mr_size) {
		mr = (rdma->api->ibv_reg_mr)(rdma->pd, at, bytes, access);
		err = errno;
	}
	if (mr)
		return mr;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (bytes > rdma->device.max_mr_size)
		snprintf(why, room,
			 "a region of %zu bytes is too large for the RDMA device, which takes %llu: a smaller "
			 "slot_bytes or window_bytes fits",
			 bytes, (unsigned long long)rdma->device.max_mr_size);
	else if ((err == ENOMEM || err == EAGAIN) && limit.rlim_cur != RLIM_INFINITY)
		snprintf(why, room, "registering %zu bytes: %s; locked memory is limited to %llu KiB (ulimit -l)",
			 bytes, strerror(err), (unsigned long long)limit.rlim_cur >> 10);
	else
		snprintf(why, room, "registering %zu bytes: %s", bytes, strerror(err));
	return NULL;
}

int cvy_rdma_device_open(struct cvy_rdma *rdma, const struct cvy_rdma_wish *wish, char *why, size_t bytes)
{
	int err = cvy_rdma_look(SYS_DEVICES, wish, why, bytes);

	if (err)
		return err;
	rdma->api = cvy_verbs_load(why, bytes);
	if (!rdma->api)
		return COVEY_ERR_UNSUPPORTED;
	if (access(CM_NODE, R_OK | W_OK)) {
		snprintf(why, bytes, CM_NODE ": %s (kernel module rdma_ucm)", strerror(errno));
		return COVEY_ERR_UNSUPPORTED;
	}
	rdma->api->ibv_fork_init();
	rdma->channel = rdma->api->rdma_create_event_channel();
	if (!rdma->channel) {
		snprintf(why, bytes, "rdma_cm does not start: %s", strerror(errno));
		return COVEY_ERR_UNSUPPORTED;
	}
	err = choose(rdma, wish, why, bytes);
	if (!err)
		err = listen_at(rdma, why, bytes);
	if (err)
		return err;
	rdma->context = rdma->listener->verbs;
	err = ask_device(rdma, why, bytes);
	if (err)
		return err;
	rdma->pd = rdma->api->ibv_alloc_pd(rdma->context);
	if (!rdma->pd) {
		snprintf(why, bytes, "no protection domain: %s", strerror(errno));
		return COVEY_ERR_UNSUPPORTED;
	}
	return 0;
}
