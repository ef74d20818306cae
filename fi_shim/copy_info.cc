#include "fi_shim/copy_info.h"

#include <cstdlib>
#include <cstring>

#include "fi_shim/nic_attr.h"

namespace verbena::fi {
namespace {

bool CopyBytes(const void* from, size_t bytes, void** to) {
  *to = nullptr;
  if (from == nullptr || bytes == 0) return true;
  *to = malloc(bytes);
  if (*to == nullptr) return false;
  memcpy(*to, from, bytes);
  return true;
}

bool CopyString(const char* from, char** to) {
  *to = from == nullptr ? nullptr : strdup(from);
  return from == nullptr || *to != nullptr;
}

template <typename T>
bool CopyPart(const T* from, T** to) {
  *to = nullptr;
  if (from == nullptr) return true;
  *to = static_cast<T*>(malloc(sizeof(T)));
  if (*to == nullptr) return false;
  **to = *from;
  return true;
}

bool CopyParts(const fi_info* from, fi_info* to) {
  to->next = nullptr;
  to->nic = nullptr;
  to->src_addr = to->dest_addr = nullptr;
  to->tx_attr = nullptr;
  to->rx_attr = nullptr;
  to->ep_attr = nullptr;
  to->domain_attr = nullptr;
  to->fabric_attr = nullptr;
  bool is_done = CopyBytes(from->src_addr, from->src_addrlen, &to->src_addr) &&
                 CopyBytes(from->dest_addr, from->dest_addrlen, &to->dest_addr) &&
                 CopyPart(from->tx_attr, &to->tx_attr) && CopyPart(from->rx_attr, &to->rx_attr);
  if (is_done && CopyPart(from->ep_attr, &to->ep_attr) && to->ep_attr != nullptr) {
    void* key;
    is_done = CopyBytes(from->ep_attr->auth_key, from->ep_attr->auth_key_size, &key);
    to->ep_attr->auth_key = static_cast<uint8_t*>(key);
  }
  if (is_done && CopyPart(from->domain_attr, &to->domain_attr) && to->domain_attr != nullptr) {
    void* key;
    is_done = CopyBytes(from->domain_attr->auth_key, from->domain_attr->auth_key_size, &key);
    to->domain_attr->auth_key = static_cast<uint8_t*>(key);
    is_done = CopyString(from->domain_attr->name, &to->domain_attr->name) && is_done;
  }
  if (is_done && CopyPart(from->fabric_attr, &to->fabric_attr) && to->fabric_attr != nullptr) {
    is_done = CopyString(from->fabric_attr->name, &to->fabric_attr->name);
    is_done = CopyString(from->fabric_attr->prov_name, &to->fabric_attr->prov_name) && is_done;
  }
  to->nic = CopyNic(from->nic);
  const bool has_all = (from->nic == nullptr || to->nic != nullptr) &&
                       (from->ep_attr == nullptr || to->ep_attr != nullptr) &&
                       (from->domain_attr == nullptr || to->domain_attr != nullptr) &&
                       (from->fabric_attr == nullptr || to->fabric_attr != nullptr);
  return is_done && has_all;
}

}  // namespace

fi_info* CopyInfo(const fi_info* info) {
  auto* copy = static_cast<fi_info*>(malloc(sizeof(fi_info)));
  if (copy == nullptr) return nullptr;
  *copy = *info;
  if (CopyParts(info, copy)) return copy;
  FreeInfo(copy);
  return nullptr;
}

void FreeInfo(fi_info* info) {
  if (info == nullptr) return;
  if (info->ep_attr != nullptr) free(info->ep_attr->auth_key);
  if (info->domain_attr != nullptr) {
    free(info->domain_attr->auth_key);
    free(info->domain_attr->name);
  }
  if (info->fabric_attr != nullptr) {
    free(info->fabric_attr->name);
    free(info->fabric_attr->prov_name);
  }
  FreeNic(info->nic);
  free(info->src_addr);
  free(info->dest_addr);
  free(info->tx_attr);
  free(info->rx_attr);
  free(info->ep_attr);
  free(info->domain_attr);
  free(info->fabric_attr);
  free(info);
}

bool SetAddress(void** to, size_t* to_bytes, const void* from, size_t bytes) {
  void* copy;
  if (!CopyBytes(from, bytes, &copy)) return false;
  free(*to);
  *to = copy;
  *to_bytes = copy == nullptr ? 0 : bytes;
  return true;
}

}  // namespace verbena::fi
