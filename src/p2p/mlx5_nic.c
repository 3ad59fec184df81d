/* SPDX-License-Identifier: Apache-2.0 */
/* An opened adapter and the memory that it may touch. If something is missing, the error names it and a remedy. */
#include "queues.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mlx5.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_device *pick(const struct cvy_mlx5_api *api, struct ibv_device **list, int n, const char *want)
{
	for (int i = 0; i < n; i++)
		if (want ? !strcmp(api->ibv_get_device_name_(list[i]), want) : (int)api->mlx5dv_is_supported_(list[i]))
			return list[i];
	return NULL;
}

static int nic_open_device(struct cvy_nic *nic, const char *want)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device **list, *device;
	int n = 0, err = 0;

	list = nic->api->ibv_get_device_list_(&n);
	device = list ? pick(nic->api, list, n, want) : NULL;
	if (!device) {
		err = cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0,
			       "no mlx5 device%s%s among %d RDMA devices of this host", want ? " called " : "",
			       want ? want : "", n);
	} else if (!nic->api->mlx5dv_is_supported_(device)) {
		err = cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s is no mlx5 device: use the proxy", want);
	} else {
		strncpy(nic->name, nic->api->ibv_get_device_name_(device), sizeof(nic->name) - 1);
		nic->context = nic->api->mlx5dv_open_device_(device, &attr);
		if (!nic->context) { /* a kernel without DEVX, or no right to it */
			attr.flags = 0;
			nic->devx = COVEY_ERR_UNSUPPORTED;
			nic->context = nic->api->mlx5dv_open_device_(device, &attr);
		}
		if (!nic->context)
			err = cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s cannot be opened: %s%s", nic->name,
				       strerror(errno), errno == EACCES ? " (rights of /dev/infiniband/uverbs*)" : "");
	}
	if (list)
		nic->api->ibv_free_device_list_(list);
	return err;
}

static int nic_ask_port(struct cvy_nic *nic)
{
	struct ibv_port_attr port = { 0 };
	union ibv_gid gid;

	if (nic->api->ibv_query_port_(nic->context, (uint8_t)nic->port, (struct _compat_ibv_port_attr *)&port))
		return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s has no port %d", nic->name, nic->port);
	if (port.state != IBV_PORT_ACTIVE)
		return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "port %d of %s is not active (state %d)",
				nic->port, nic->name, (int)port.state);
	nic->lid = port.lid;
	nic->mtu = (int)port.active_mtu;
	nic->ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
	if (!nic->api->ibv_query_gid_(nic->context, (uint8_t)nic->port, nic->gid_index, &gid))
		memcpy(nic->gid, gid.raw, 16);
	else if (nic->ethernet)
		return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s has no address at index %d", nic->name,
				nic->gid_index);
	return 0;
}

static int nic_open_domain(struct cvy_nic *nic)
{
	struct mlx5dv_pd pd = { 0 };
	struct mlx5dv_obj obj = { 0 };

	nic->pd = nic->api->ibv_alloc_pd_(nic->context);
	if (!nic->pd)
		return cvy_fail(nic->box, COVEY_ERR_IO, -1, 0, "%s: no protection domain: %s", nic->name,
				strerror(errno));
	obj.pd.in = nic->pd;
	obj.pd.out = &pd;
	if (nic->api->mlx5dv_init_obj_(&obj, MLX5DV_OBJ_PD))
		return cvy_fail(nic->box, COVEY_ERR_IO, -1, 0, "%s: its protection domain has no number", nic->name);
	nic->pdn = pd.pdn;
	nic->sink_word = aligned_alloc(CVY_PAGE, CVY_PAGE);
	if (!nic->sink_word)
		return COVEY_ERR_NOMEM;
	memset(nic->sink_word, 0, CVY_PAGE);
	return cvy_region_open(nic, nic->sink_word, CVY_PAGE, -1, &nic->sink);
}

int cvy_nic_open(const struct cvy_nic_args *args, struct cvy_nic **out)
{
	const struct cvy_mlx5_api *api = cvy_mlx5_api(args->box);
	struct cvy_nic *nic;
	int err;

	if (!api)
		return COVEY_ERR_UNSUPPORTED;
	nic = calloc(1, sizeof(*nic));
	if (!nic)
		return COVEY_ERR_NOMEM;
	nic->api = api;
	nic->box = args->box;
	nic->memory = args->memory;
	nic->port = args->port ? args->port : 1;
	nic->gid_index = args->gid_index;
	nic->psn = (uint32_t)cvy_q_ticks() & 0xffffff; /* distinguishes packets of an earlier life from ours */
	err = nic_open_device(nic, args->device);
	if (!err)
		err = nic_ask_port(nic);
	if (!err)
		err = nic_open_domain(nic);
	if (err) {
		cvy_nic_close(nic);
		return err;
	}
	*out = nic;
	return 0;
}

void cvy_nic_close(struct cvy_nic *nic)
{
	struct cvy_uar *uar;

	if (!nic)
		return;
	cvy_region_close(nic->sink);
	free(nic->sink_word);
	cvy_devx_unreserve(nic);
	while ((uar = nic->uars)) {
		nic->uars = uar->next;
		nic->api->mlx5dv_devx_free_uar_(uar->uar);
		free(uar);
	}
	if (nic->pd)
		nic->api->ibv_dealloc_pd_(nic->pd);
	if (nic->context)
		nic->api->ibv_close_device_(nic->context);
	free(nic);
}

const char *cvy_nic_name(const struct cvy_nic *nic)
{
	return nic->name;
}

int cvy_region_open(struct cvy_nic *nic, void *at, size_t bytes, int dmabuf_fd, struct cvy_region **out)
{
	struct cvy_region *region = calloc(1, sizeof(*region));

	if (!region)
		return COVEY_ERR_NOMEM;
	region->nic = nic;
	region->address = (uint64_t)(uintptr_t)at;
	region->bytes = bytes;
	if (dmabuf_fd >= 0)
		region->mr = nic->api->ibv_reg_dmabuf_mr_(nic->pd, 0, bytes, region->address, dmabuf_fd, ACCESS);
	else
		region->mr = nic->api->ibv_reg_mr_(nic->pd, at, bytes, ACCESS);
	if (!region->mr) {
		int seen = errno;

		free(region);
		return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s cannot reach %zu bytes at %p%s: %s%s",
				nic->name, bytes, at, dmabuf_fd >= 0 ? " by dmabuf" : "", strerror(seen),
				seen == EFAULT ? " (memory of a GPU takes dmabuf, or the module nvidia-peermem)" : "");
	}
	*out = region;
	return 0;
}

void cvy_region_close(struct cvy_region *region)
{
	if (!region)
		return;
	if (region->nic->api->ibv_dereg_mr_(region->mr))
		cvy_warn("p2p", "%s: a region of %zu bytes is still in use", region->nic->name, (size_t)region->bytes);
	free(region);
}
