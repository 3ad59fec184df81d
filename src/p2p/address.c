/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity of this host, addresses at which peers dial it, dialling. An address in the store is
 * `unix:@name,tcp:ADDR:PORT[,tcp:ADDR:PORT...]`: peers of this host take the first part, others try the rest in order.
 *
 * Two processes are on one host if memory, pids and abstract sockets mean the same to both: same boot, same network
 * namespace, same pid namespace. COVEY_HOST can only separate them; without it the host's name follows, which people read.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "hash.h"
#include "interface.h"
#include "log.h"
#include "mesh.h"

#define BACKLOG 1024

static unsigned long namespace_inode(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : (unsigned long)st.st_ino;
}

void cvy_address_host(const char *override, char *text, size_t bytes)
{
	char boot[40] = "unknown", name[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, boot, 36) : -1;

	if (fd >= 0)
		close(fd);
	if (n == 36)
		boot[36] = '\0';
	if (!*override)
		gethostname(name, sizeof(name) - 1);
	else if (strlen(override) < sizeof(name))
		snprintf(name, sizeof(name), "%s", override);
	else /* members keep 127 bytes of all this, and two that differ late are two */
		snprintf(name, sizeof(name), "%.40s-%016" PRIx64, override, cvy_hash_text(override));
	snprintf(text, bytes, "%s.%lu.%lu.%s", boot, namespace_inode("/proc/self/ns/net"),
		 namespace_inode("/proc/self/ns/pid"), name);
	for (char *c = text; *c; c++)
		if (!isgraph((unsigned char)*c))
			*c = '_';
}

int cvy_address_listen_unix(char *name, size_t bytes, struct cvy_errbox *box)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	uint64_t random[2];
	int fd, n;

	randombytes_buf(random, sizeof(random));
	n = snprintf(sun.sun_path + 1, sizeof(sun.sun_path) - 1, "covey-%016llx%016llx", (unsigned long long)random[0],
		     (unsigned long long)random[1]);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 ||
	    bind(fd, (struct sockaddr *)&sun, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) ||
	    listen(fd, BACKLOG)) {
		int err = errno;

		if (fd >= 0)
			close(fd);
		return cvy_fail(box, COVEY_ERR_IO, -1, 0, "listening on a unix socket: %s", strerror(err));
	}
	snprintf(name, bytes, "unix:@%s", sun.sun_path + 1);
	return fd;
}

static int literal(const char *text, struct sockaddr_storage *to)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)to;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		return 1;
	}
	if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		return 1;
	}
	return 0;
}

static socklen_t length(const struct sockaddr_storage *addr)
{
	return addr->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void set_port(struct sockaddr_storage *addr, uint16_t port)
{
	if (addr->ss_family == AF_INET)
		((struct sockaddr_in *)addr)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
}

static void print(const struct sockaddr_storage *addr, char *name, size_t bytes)
{
	char text[INET6_ADDRSTRLEN] = "";

	if (addr->ss_family == AF_INET) {
		const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;

		inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
		snprintf(name, bytes, "tcp:%s:%u", text, (unsigned)ntohs(v4->sin_port));
	} else {
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;

		inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
		snprintf(name, bytes, "tcp:[%s]:%u", text, (unsigned)ntohs(v6->sin6_port));
	}
}

static int listen_at(struct sockaddr_storage *addr, char *name, size_t bytes)
{
	socklen_t len = length(addr);
	int fd, err;

	set_port(addr, 0);
	fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && !bind(fd, (struct sockaddr *)addr, len) && !listen(fd, BACKLOG) &&
	    !getsockname(fd, (struct sockaddr *)addr, &len)) {
		print(addr, name, bytes);
		return fd;
	}
	err = errno;
	print(addr, name, bytes);
	if (fd >= 0)
		close(fd);
	errno = err;
	return -1;
}

/* Addresses that peers may dial, best first: their number, or an error that lists the interfaces. */
static int candidates(const char *interface, struct cvy_interface *list, struct cvy_errbox *box)
{
	char there[150];
	int taken, count = cvy_interface_list(interface, list, CVY_INTERFACES, &taken);

	if (taken)
		return taken;
	if (!*interface) { /* no interface is up: peers of this host need none */
		memset(list, 0, sizeof(*list));
		literal("127.0.0.1", &list->addr);
		return 1;
	}
	cvy_interface_print(list, count, there, sizeof(there));
	return cvy_fail(box, COVEY_ERR_INVAL, -1, 0, "interface \"%.60s\" fits no address of this host; there are: %s",
			interface, count ? there : "none");
}

int cvy_address_listen(const char *interface, struct cvy_listener *to, int max, struct cvy_errbox *box)
{
	struct cvy_interface *list = malloc(CVY_INTERFACES * sizeof(*list));
	int n = list ? candidates(interface, list, box) : COVEY_ERR_NOMEM, count = 0, err = 0;
	char name[CVY_LISTENER_NAME] = "";

	for (int i = 0; i < n && count < max; i++) {
		to[count].fd = listen_at(&list[i].addr, to[count].name, sizeof(to[count].name));
		if (to[count].fd >= 0) {
			count++;
			continue;
		}
		if (!err)
			memcpy(name, to[count].name, sizeof(name));
		err = err ? err : errno;
		cvy_info("p2p", "cannot listen on %s: %s", to[count].name, strerror(errno));
	}
	free(list);
	if (n < 0 || count)
		return n < 0 ? n : count;
	return cvy_fail(box, COVEY_ERR_IO, -1, 0, "listening on %s: %s", name, strerror(err));
}

/* Part number @at of the parts of @addr that begin with @scheme, without the scheme. */
static int part(const char *addr, const char *scheme, int at, char *to, size_t bytes)
{
	size_t n = strlen(scheme);

	while (addr && *addr) {
		size_t len = strcspn(addr, ",");

		if (len > n && len - n < bytes && !strncmp(addr, scheme, n) && !at--) {
			memcpy(to, addr + n, len - n);
			to[len - n] = '\0';
			return 0;
		}
		addr += len;
		addr += *addr == ',';
	}
	return COVEY_ERR_INVAL;
}

static int parse_tcp(const char *addr, int at, struct sockaddr_storage *to)
{
	char text[128], *port, *host = text;
	long number;
	char *end;

	if (part(addr, "tcp:", at, text, sizeof(text)))
		return COVEY_ERR_INVAL;
	port = strrchr(text, ':');
	if (!port)
		return COVEY_ERR_INVAL;
	*port++ = '\0';
	if (*host == '[' && port - text >= 3 && port[-2] == ']') {
		host++;
		port[-2] = '\0';
	}
	number = strtol(port, &end, 10);
	if (*end || number < 1 || number > 65535 || !literal(host, to))
		return COVEY_ERR_INVAL;
	set_port(to, (uint16_t)number);
	return 0;
}

static int parse_unix(const char *addr, struct sockaddr_un *to, socklen_t *len)
{
	char text[sizeof(to->sun_path)];

	if (part(addr, "unix:@", 0, text, sizeof(text)))
		return COVEY_ERR_INVAL;
	memset(to, 0, sizeof(*to));
	to->sun_family = AF_UNIX;
	memcpy(to->sun_path + 1, text, strlen(text));
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(text));
	return 0;
}

static int is_loopback(const struct sockaddr_storage *addr)
{
	if (addr->ss_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

/* The own address of @family in @from. 0: there is none, or there are several and the system chooses better. */
static int own_address(const char *from, int family, struct sockaddr_storage *own)
{
	struct sockaddr_storage one;
	int found = 0;

	for (int i = 0; !parse_tcp(from, i, &one); i++) {
		if (one.ss_family != family)
			continue;
		*own = one;
		found++;
	}
	return found == 1;
}

/* On a host with several networks, calls leave from the address that peers dial. If that fails, any address will do. */
static void call_from(int fd, const char *from, const struct sockaddr_storage *to)
{
	struct sockaddr_storage own;
	int one = 1;

	if (!own_address(from, to->ss_family, &own) || (is_loopback(&own) && !is_loopback(to)))
		return;
	set_port(&own, 0);
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)&own, length(&own)))
		cvy_warn("p2p", "calling from %s: %s", from, strerror(errno));
}

int cvy_address_count(const char *addr)
{
	struct sockaddr_storage to;
	int n = 0;

	while (n < CVY_LISTENERS && !parse_tcp(addr, n, &to))
		n++;
	return n;
}

void cvy_address_name(const char *addr, int at, char *text, size_t bytes)
{
	if (part(addr, "tcp:", at, text, bytes))
		snprintf(text, bytes, "its address");
}

int cvy_address_connect(const char *addr, int at, const char *from, const char **why)
{
	int by_unix = at == CVY_BY_UNIX, fd, one = 1;
	union {
		struct sockaddr_storage in;
		struct sockaddr_un un;
	} to;
	socklen_t len = 0;

	memset(&to, 0, sizeof(to));
	if (by_unix ? parse_unix(addr, &to.un, &len) : parse_tcp(addr, at, &to.in)) {
		*why = "its address cannot be read";
		return COVEY_ERR_INVAL;
	}
	if (!by_unix)
		len = length(&to.in);
	fd = socket(by_unix ? AF_UNIX : to.in.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		*why = strerror(errno);
		return COVEY_ERR_IO;
	}
	if (!by_unix) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		call_from(fd, from, &to.in);
	}
	if (connect(fd, (struct sockaddr *)&to, len) && errno != EINPROGRESS) {
		*why = strerror(errno);
		close(fd);
		return COVEY_ERR_IO;
	}
	return fd;
}
