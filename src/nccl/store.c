/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of NCCL find each other by an id; those of covey by a store. An id names a store. Where there is none, the
 * process that makes the id starts a server for its host: on a unix socket, in a directory of its own. Its members may
 * die in any order, so the server is no child of any of them. It ends with the last of them: each holds a pipe with a
 * name open for as long as it lives, and a shell reads from it until the last writer is gone.
 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

#define START_MS 10000
#define NAP_NS 2000000 /* between two looks at a server that starts */
#define SCHEME "redis+unix://"
#define SOCKET "/socket"
#define USERS "/users"
#define SERVER "/redis-server"

/* For the shell; $1 is the directory. */
static const char script[] =
	"( \"$1\"" SERVER " --port 0 --unixsocket \"$1\"" SOCKET " --unixsocketperm 700 --save '' --appendonly no"
	" --maxmemory-policy noeviction --dir \"$1\" & server=$!; read -r _ <\"$1\"" USERS
	"; kill \"$server\"; wait \"$server\"; rm -rf \"$1\" ) &";

static struct {
	pthread_mutex_t lock;
	char url[CVY_NCCL_STORE_CHARS]; /* that this process uses; empty: none */
	uint64_t own;
	char held[CVY_NCCL_STORE_CHARS]; /* the store whose pipe is open, for good */
} used = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void nap(void)
{
	nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
}

/* ---- the program ---- */

/* Debian's redis-tools has the server without its service: it goes by the name by which it is called. */
static int find_program(char *path, size_t bytes)
{
	static const char *const names[] = { "redis-server", "valkey-server", "redis-check-rdb", "valkey-check-rdb" };
	const char *search = getenv("PATH");

	for (size_t i = 0; search && i < sizeof(names) / sizeof(names[0]); i++) {
		for (const char *at = search; *at;) {
			size_t n = strcspn(at, ":");

			snprintf(path, bytes, "%.*s/%s", (int)n, at, names[i]);
			if (n && !access(path, X_OK))
				return 1;
			at += n + (at[n] == ':');
		}
	}
	return 0;
}

/* ---- the server ---- */

/* The environment without LD_PRELOAD, which is for this program; NULL: no memory. */
static char **environment_for_server(void)
{
	size_t n = 0, kept = 0;
	char **all;

	while (environ[n])
		n++;
	all = calloc(n + 1, sizeof(*all));
	for (size_t i = 0; all && i < n; i++)
		if (strncmp(environ[i], "LD_PRELOAD=", sizeof("LD_PRELOAD=") - 1))
			all[kept++] = environ[i];
	return all;
}

/* Others' descriptors are not for it, and keys that stop this program do not stop it. */
static int spawn_shell(const char *directory)
{
	char *const argv[] = { "sh", "-c", (char *)script, "sh", (char *)directory, NULL };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	char **environment = environment_for_server();
	sigset_t none, all;
	pid_t pid;
	int err;

	if (!environment)
		return ENOMEM;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&files, 0, 1);
	posix_spawn_file_actions_adddup2(&files, 0, 2);
	posix_spawn_file_actions_addclosefrom_np(&files, 3);
	err = posix_spawn(&pid, "/bin/sh", &files, &attr, argv, environment);
	free(environment);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attr);
	if (!err)
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) /* it leaves the server to itself */
			;
	return err;
}

static int answers(const char *directory)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), ok;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s" SOCKET, directory);
	ok = fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to));
	if (fd >= 0)
		close(fd);
	return ok;
}

/* Opens the pipe of the users of @directory. @flags: O_RDWR does not wait for a reader. */
static int hold(const char *directory, int flags)
{
	char path[CVY_NCCL_STORE_CHARS + sizeof(USERS)];

	snprintf(path, sizeof(path), "%s" USERS, directory);
	return open(path, flags | O_CLOEXEC | O_NONBLOCK); /* kept until this process ends */
}

/* Removes what the shell has left. Without a writer to its pipe the shell ends, and the server with it. */
static void undo(const char *directory, int users)
{
	static const char *const files[] = { SERVER, USERS, SOCKET };
	char path[CVY_NCCL_STORE_CHARS + 32];

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", directory, files[i]);
		unlink(path);
	}
	if (users >= 0)
		close(users);
	rmdir(directory);
}

/* *users: the pipe of the users; it stays open. */
static ncclResult_t start_in(const char *directory, const char *program, int *users)
{
	char path[CVY_NCCL_STORE_CHARS + 32];

	snprintf(path, sizeof(path), "%s" SERVER, directory);
	if (symlink(program, path))
		return cvy_nccl_fail(ncclSystemError, "no store: symlink %s: %s", path, strerror(errno));
	snprintf(path, sizeof(path), "%s" USERS, directory);
	if (mkfifo(path, 0600) || (*users = hold(directory, O_RDWR)) < 0)
		return cvy_nccl_fail(ncclSystemError, "no store: mkfifo %s: %s", path, strerror(errno));
	if (spawn_shell(directory))
		return cvy_nccl_fail(ncclSystemError, "no store: /bin/sh cannot be started");
	for (int ms = 0; ms < START_MS; ms += NAP_NS / 1000000) {
		if (answers(directory))
			return ncclSuccess;
		nap();
	}
	return cvy_nccl_fail(ncclSystemError, "no store: %s does not answer in %s within %d ms", program, directory,
			     START_MS);
}

static ncclResult_t start(void)
{
	const char *tmp = getenv("TMPDIR");
	char program[4096], directory[CVY_NCCL_STORE_CHARS - sizeof(SCHEME) - sizeof(SOCKET)];
	ncclResult_t r;
	int users = -1;

	if (!find_program(program, sizeof(program)))
		return cvy_nccl_fail(ncclSystemError,
				     "no store: set COVEY_STORE to the URL of a Redis, or install redis-server or "
				     "valkey-server so that ncclGetUniqueId() finds it on PATH");
	/* The path of a socket is short, and is part of a URL. */
	if (!tmp || tmp[0] != '/' || strpbrk(tmp, " \t\r\n%?") ||
	    strlen(tmp) + sizeof("/covey-nccl-XXXXXX") > sizeof(directory))
		tmp = "/tmp";
	snprintf(directory, sizeof(directory), "%s/covey-nccl-XXXXXX", tmp);
	if (!mkdtemp(directory))
		return cvy_nccl_fail(ncclSystemError, "no store: mkdtemp %s: %s", directory, strerror(errno));
	r = start_in(directory, program, &users);
	if (r) {
		undo(directory, users);
		return r;
	}
	snprintf(used.url, sizeof(used.url), SCHEME "%s" SOCKET, directory);
	memcpy(used.held, used.url, sizeof(used.held));
	used.own = 1;
	return ncclSuccess;
}

/* ---- ids ---- */

ncclResult_t cvy_nccl_store_find(struct cvy_nccl_id *id)
{
	const char *named = getenv("COVEY_STORE");
	ncclResult_t r = ncclSuccess;

	id->own_store = 0;
	id->store[0] = '\0';
	if (named && named[0]) {
		/* An id travels in the clear: a URL with a password stays out of it. */
		if (strlen(named) < sizeof(id->store) && !strchr(named, '@'))
			memcpy(id->store, named, strlen(named) + 1);
		return ncclSuccess;
	}
	pthread_mutex_lock(&used.lock);
	if (!used.url[0])
		r = start();
	memcpy(id->store, used.url, sizeof(id->store));
	id->own_store = used.own;
	pthread_mutex_unlock(&used.lock);
	return r;
}

/* The store ends with its last user: this process is one from here on. */
static ncclResult_t join_users(const struct cvy_nccl_id *id)
{
	char directory[CVY_NCCL_STORE_CHARS];
	size_t n = strlen(id->store);
	ncclResult_t r = ncclSuccess;

	if (n < sizeof(SCHEME SOCKET) || strncmp(id->store, SCHEME, sizeof(SCHEME) - 1))
		return cvy_nccl_fail(ncclInvalidArgument, "the unique id is damaged: its store is %s", id->store);
	snprintf(directory, sizeof(directory), "%.*s", (int)(n - (sizeof(SCHEME) - 1) - (sizeof(SOCKET) - 1)),
		 id->store + sizeof(SCHEME) - 1);
	pthread_mutex_lock(&used.lock);
	if (strcmp(used.held, id->store)) {
		if (hold(directory, O_WRONLY) < 0)
			r = cvy_nccl_fail(
				ncclSystemError,
				"the store of the unique id is not here: %s: %s. ncclGetUniqueId() started it "
				"for its own host; for ranks on several hosts set COVEY_STORE on all of them",
				directory, strerror(errno));
		else
			memcpy(used.held, id->store, sizeof(used.held));
	}
	pthread_mutex_unlock(&used.lock);
	return r;
}

/* The next id of this process is of the same store. */
static void remember(const struct cvy_nccl_id *id)
{
	pthread_mutex_lock(&used.lock);
	if (!used.url[0]) {
		memcpy(used.url, id->store, sizeof(used.url));
		used.own = id->own_store;
	}
	pthread_mutex_unlock(&used.lock);
}

char *cvy_nccl_store_use(const struct cvy_nccl_id *id)
{
	/* The same store may have another address on each host: that of the environment is this host's. */
	const char *named = getenv("COVEY_STORE"), *store = named && named[0] && !id->own_store ? named : id->store;
	char *url;

	if (!store[0]) {
		cvy_nccl_tell("the unique id was made with a COVEY_STORE that it does not carry, for "
			      "its password or its length: set COVEY_STORE on this rank too");
		return NULL;
	}
	if (id->own_store && join_users(id))
		return NULL;
	if (store == id->store)
		remember(id);
	/* Every process with an id is a founder, whatever COVEY_CREATE says. */
	if (asprintf(&url, "%s%ccreate=first&admission=manual", store, strchr(store, '?') ? '&' : '?') >= 0)
		return url;
	cvy_nccl_tell("no memory for the URL of the store");
	return NULL;
}
