// What Verbena tells beyond verbs.h. For C and C++; nothing to link.
#pragma once

// The lower 32 bits of the resource_type that the allocator of a parent domain is called with, see
// ibv_alloc_parent_domain(3); the upper 32 are RDMA_DRIVER_RXE. The memory holds the entries of one
// queue, from its first byte on. Indices stand in pages of the device, and none is asked for them.
enum verbenadv_res_type {
  VERBENADV_RES_TYPE_SQ = 1,
  VERBENADV_RES_TYPE_RQ = 2,
  VERBENADV_RES_TYPE_SRQ = 3,
  VERBENADV_RES_TYPE_CQ = 4,
};

// Options of ibv_query_ece(3) and ibv_set_ece(3), of RC QPs; vendor_id is that of ibv_query_device.
// A QP may do what its options say, and a new one may do everything. A program that takes those of
// its peer makes sure that both understand what it will send.
enum verbenadv_ece_options {
  VERBENADV_ECE_ATOMIC_WRITE = 1 << 0,  // ibv_wr_atomic_write
  VERBENADV_ECE_FLUSH = 1 << 1,         // ibv_wr_flush
};
