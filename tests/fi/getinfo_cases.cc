// fi_getinfo(3): every hint is honoured, every API version answered as documented.
#include <string.h>

#include "tests/fi/fabric.h"

namespace verbena::fi_test {
namespace {

constexpr uint64_t kNobodysCap = 1ULL << 60;

// Whether the hint is met, by what `check` says of each entry; refused hints are -FI_ENODATA.
void Honoured(const Wish& wish, const std::function<bool(const fi_info*)>& check,
              const char* what) {
  Info info;
  const int result = TryGetInfo(wish, &info);
  if (result == -FI_ENODATA) Refuse("%s: -FI_ENODATA", what);
  Expect(result == 0, "%s: %s", what, NameOf(result).c_str());
  for (const fi_info* entry = info.get(); entry != nullptr; entry = entry->next) {
    Expect(check(entry), "%s is not what the output says", what);
  }
}

void RefusedHint(const Wish& wish, const char* what) {
  Info info;
  ExpectError(TryGetInfo(wish, &info), -FI_ENODATA, what);
}

Wish With(std::function<void(fi_info*)> hints) {
  Wish wish;
  wish.hints = std::move(hints);
  return wish;
}

void SetName(char** name, const char* value) {
  free(*name);
  *name = strdup(value);
}

FI_CASE("getinfo.lists", kAll) {
  const Info info = GetInfo({});
  for (const fi_info* entry = info.get(); entry != nullptr; entry = entry->next) {
    Expect(entry->domain_attr->name != nullptr && entry->fabric_attr->name != nullptr &&
               entry->fabric_attr->prov_name != nullptr,
           "an entry without names");
    Expect(entry->ep_attr->type == Asked().type, "another type of endpoint");
    Expect((entry->caps & FI_MSG) != 0, "FI_MSG was asked for");
    Expect(entry->fabric_attr->api_version == FI_VERSION(1, 17), "api_version %#x",
           entry->fabric_attr->api_version);
  }
}

FI_CASE("getinfo.without_hints", kOnce) {
  fi_info* info = nullptr;
  Need(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, nullptr, &info), "fi_getinfo");
  bool is_listed = false;
  for (const fi_info* entry = info; entry != nullptr; entry = entry->next) {
    is_listed |= Asked().provider == entry->fabric_attr->prov_name;
  }
  fi_freeinfo(info);
  Expect(is_listed, "not listed");
}

FI_CASE("getinfo.hints_without_attributes", kOnce) {
  fi_info hints = {};
  hints.mode = ~0ULL;
  fi_info* info = nullptr;
  Need(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, &hints, &info), "fi_getinfo");
  bool is_listed = false;
  for (const fi_info* entry = info; entry != nullptr; entry = entry->next) {
    is_listed |= Asked().provider == entry->fabric_attr->prov_name;
  }
  fi_freeinfo(info);
  Expect(is_listed, "not listed");
}

FI_CASE("getinfo.hint.caps", kAll) {
  const uint64_t caps = FI_MSG | FI_SEND | FI_RECV;
  Honoured(
      {.caps = caps}, [=](const fi_info* entry) { return (entry->caps & caps) == caps; }, "caps");
  RefusedHint({.caps = FI_MSG | kNobodysCap}, "a capability that nobody has");
}

FI_CASE("getinfo.hint.primary_caps_only", kAll) {
  Honoured(
      {.caps = FI_MSG},
      [](const fi_info* entry) { return (entry->caps & (FI_RMA | FI_TAGGED | FI_ATOMIC)) == 0; },
      "FI_MSG alone");
}

FI_CASE("getinfo.hint.caps_zero", kAll) {
  Honoured(
      {.caps = 0}, [](const fi_info* entry) { return (entry->caps & FI_MSG) != 0; }, "no caps");
}

FI_CASE("getinfo.hint.caps_modifiers", kAll) {
  Honoured(
      {.caps = FI_MSG | FI_SEND}, [](const fi_info* entry) { return (entry->caps & FI_SEND) != 0; },
      "FI_SEND alone");
}

// Every capability: either the output has it, or -FI_ENODATA.
struct Capability {
  const char* name;
  uint64_t caps;
};
constexpr Capability kCapabilities[] = {
    {"FI_RMA", FI_RMA},
    {"FI_MULTI_RECV", FI_MSG | FI_MULTI_RECV},
    {"FI_SOURCE", FI_MSG | FI_SOURCE},
    {"FI_SOURCE_ERR", FI_MSG | FI_SOURCE | FI_SOURCE_ERR},
    {"FI_DIRECTED_RECV", FI_MSG | FI_DIRECTED_RECV},
    {"FI_FENCE", FI_MSG | FI_FENCE},
    {"FI_RMA_EVENT", FI_MSG | FI_RMA | FI_RMA_EVENT},
    {"FI_LOCAL_COMM", FI_MSG | FI_LOCAL_COMM},
    {"FI_REMOTE_COMM", FI_MSG | FI_REMOTE_COMM},
    {"FI_SHARED_AV", FI_MSG | FI_SHARED_AV},
    {"FI_AV_USER_ID", FI_MSG | FI_AV_USER_ID},
    {"FI_HMEM", FI_MSG | FI_HMEM},
};

// What a later version will have is refused properly till then.
constexpr Capability kLater[] = {{"FI_TAGGED", FI_TAGGED},
                                 {"FI_ATOMIC", FI_ATOMIC},
                                 {"FI_MULTICAST", FI_MSG | FI_MULTICAST},
                                 {"FI_COLLECTIVE", FI_COLLECTIVE},
                                 {"FI_TRIGGER", FI_MSG | FI_TRIGGER},
                                 {"FI_NAMED_RX_CTX", FI_MSG | FI_NAMED_RX_CTX},
                                 {"FI_VARIABLE_MSG", FI_MSG | FI_VARIABLE_MSG},
                                 {"FI_RMA_PMEM", FI_MSG | FI_RMA | FI_RMA_PMEM}};

void OfferedOrRefused(const Capability& capability) {
  Honoured(
      {.caps = capability.caps},
      [&](const fi_info* entry) { return (entry->caps & capability.caps) == capability.caps; },
      capability.name);
}

const bool kCapabilityCases = [] {
  for (const Capability& capability : kCapabilities) {
    Registration(
        std::string("getinfo.caps.") + capability.name, [&] { OfferedOrRefused(capability); },
        kAll);
  }
  for (const Capability& capability : kLater) {
    Registration(
        std::string("getinfo.caps.") + capability.name, [&] { OfferedOrRefused(capability); },
        kAll);
  }
  return true;
}();

FI_CASE("getinfo.hint.mode_zero", kAll) {
  Honoured(
      With([](fi_info* hints) { hints->mode = 0; }),
      [](const fi_info* entry) { return entry->mode == 0; }, "no mode bits");
}

FI_CASE("getinfo.hint.ep_type", kOnce) {
  for (const fi_ep_type type : {FI_EP_MSG, FI_EP_RDM, FI_EP_DGRAM}) {
    Info info;
    TryGetInfo(With([=](fi_info* hints) { hints->ep_attr->type = type; }), &info);
    for (const fi_info* entry = info.get(); entry != nullptr; entry = entry->next) {
      Expect(entry->ep_attr->type == type, "type %d where %d was asked", entry->ep_attr->type,
             type);
    }
  }
  RefusedHint(With([](fi_info* hints) { hints->ep_attr->type = FI_EP_SOCK_DGRAM; }),
              "FI_EP_SOCK_DGRAM");
}

FI_CASE("getinfo.hint.domain_name", kAll) {
  const Info any = GetInfo({});
  const std::string name = any->domain_attr->name;
  Honoured(
      With([&](fi_info* hints) { SetName(&hints->domain_attr->name, name.c_str()); }),
      [&](const fi_info* entry) { return name == entry->domain_attr->name; }, "the name");
  RefusedHint(With([](fi_info* hints) { SetName(&hints->domain_attr->name, "nobody"); }),
              "the name of no domain");
}

FI_CASE("getinfo.hint.fabric_name", kAll) {
  const Info any = GetInfo({});
  const std::string name = any->fabric_attr->name;
  Honoured(
      With([&](fi_info* hints) { SetName(&hints->fabric_attr->name, name.c_str()); }),
      [&](const fi_info* entry) { return name == entry->fabric_attr->name; }, "the name");
  RefusedHint(With([](fi_info* hints) { SetName(&hints->fabric_attr->name, "nobody"); }),
              "the name of no fabric");
}

FI_CASE("getinfo.hint.addr_format", kAll) {
  const Info any = GetInfo({});
  const uint32_t format = any->addr_format;
  Honoured(
      With([=](fi_info* hints) { hints->addr_format = format; }),
      [=](const fi_info* entry) { return entry->addr_format == format; }, "its own format");
  RefusedHint(With([](fi_info* hints) { hints->addr_format = FI_ADDR_GNI; }), "FI_ADDR_GNI");
}

// --- enumerations ------------------------------------------------------------------------------

// Asked for, it is what the output says.
template <typename T>
void Equal(T fi_domain_attr::*field, T value, const char* name) {
  Honoured(
      With([=](fi_info* hints) { hints->domain_attr->*field = value; }),
      [=](const fi_info* entry) { return entry->domain_attr->*field == value; }, name);
}

FI_CASE("getinfo.hint.threading_safe", kAll) {
  Equal(&fi_domain_attr::threading, FI_THREAD_SAFE, "FI_THREAD_SAFE");
}
FI_CASE("getinfo.hint.threading_fid", kAll) {
  Equal(&fi_domain_attr::threading, FI_THREAD_FID, "FI_THREAD_FID");
}
FI_CASE("getinfo.hint.threading_endpoint", kAll) {
  Equal(&fi_domain_attr::threading, FI_THREAD_ENDPOINT, "FI_THREAD_ENDPOINT");
}
FI_CASE("getinfo.hint.threading_completion", kAll) {
  Equal(&fi_domain_attr::threading, FI_THREAD_COMPLETION, "FI_THREAD_COMPLETION");
}
FI_CASE("getinfo.hint.threading_domain", kAll) {
  Equal(&fi_domain_attr::threading, FI_THREAD_DOMAIN, "FI_THREAD_DOMAIN");
}
FI_CASE("getinfo.hint.threading_unspec", kAll) {
  Honoured(
      With([](fi_info*) {}),
      [](const fi_info* entry) { return entry->domain_attr->threading == FI_THREAD_SAFE; },
      "FI_THREAD_UNSPEC (the greatest parallelism)");
}
FI_CASE("getinfo.hint.control_progress_auto", kAll) {
  Equal(&fi_domain_attr::control_progress, FI_PROGRESS_AUTO, "control FI_PROGRESS_AUTO");
}
FI_CASE("getinfo.hint.control_progress_manual", kAll) {
  Equal(&fi_domain_attr::control_progress, FI_PROGRESS_MANUAL, "control FI_PROGRESS_MANUAL");
}
FI_CASE("getinfo.hint.data_progress_auto", kAll) {
  Equal(&fi_domain_attr::data_progress, FI_PROGRESS_AUTO, "data FI_PROGRESS_AUTO");
}
FI_CASE("getinfo.hint.data_progress_manual", kAll) {
  Equal(&fi_domain_attr::data_progress, FI_PROGRESS_MANUAL, "data FI_PROGRESS_MANUAL");
}
FI_CASE("getinfo.hint.resource_mgmt_enabled", kAll) {
  Equal(&fi_domain_attr::resource_mgmt, FI_RM_ENABLED, "FI_RM_ENABLED");
}
FI_CASE("getinfo.hint.resource_mgmt_disabled", kAll) {
  Equal(&fi_domain_attr::resource_mgmt, FI_RM_DISABLED, "FI_RM_DISABLED");
}
FI_CASE("getinfo.hint.av_type_map", kAddressed) {
  Equal(&fi_domain_attr::av_type, FI_AV_MAP, "FI_AV_MAP");
}
FI_CASE("getinfo.hint.av_type_table", kAddressed) {
  Equal(&fi_domain_attr::av_type, FI_AV_TABLE, "FI_AV_TABLE");
}
FI_CASE("getinfo.hint.unknown_values", kAll) {
  RefusedHint(
      With([](fi_info* hints) { hints->domain_attr->threading = static_cast<fi_threading>(99); }),
      "threading 99");
  RefusedHint(With([](fi_info* hints) {
                hints->domain_attr->data_progress = static_cast<fi_progress>(99);
              }),
              "data_progress 99");
  RefusedHint(With([](fi_info* hints) {
                hints->domain_attr->resource_mgmt = static_cast<fi_resource_mgmt>(99);
              }),
              "resource_mgmt 99");
  RefusedHint(
      With([](fi_info* hints) { hints->domain_attr->av_type = static_cast<fi_av_type>(99); }),
      "av_type 99");
}

// --- numbers -----------------------------------------------------------------------------------

// What is reported may be asked for; more is refused, or given.
struct Number {
  const char* name;
  size_t* (*of)(fi_info*);
};
#define FI_NUMBER(part, field)                                          \
  {                                                                     \
#part "." #field, [](fi_info * info) { return &info->part->field; } \
  }
constexpr Number kNumbers[] = {
    FI_NUMBER(domain_attr, mr_key_size),
    FI_NUMBER(domain_attr, cq_data_size),
    FI_NUMBER(domain_attr, cq_cnt),
    FI_NUMBER(domain_attr, ep_cnt),
    FI_NUMBER(domain_attr, tx_ctx_cnt),
    FI_NUMBER(domain_attr, rx_ctx_cnt),
    FI_NUMBER(domain_attr, max_ep_tx_ctx),
    FI_NUMBER(domain_attr, max_ep_rx_ctx),
    FI_NUMBER(domain_attr, max_ep_stx_ctx),
    FI_NUMBER(domain_attr, max_ep_srx_ctx),
    FI_NUMBER(domain_attr, cntr_cnt),
    FI_NUMBER(domain_attr, mr_iov_limit),
    FI_NUMBER(domain_attr, max_err_data),
    FI_NUMBER(domain_attr, mr_cnt),
    FI_NUMBER(ep_attr, max_msg_size),
    FI_NUMBER(ep_attr, max_order_raw_size),
    FI_NUMBER(ep_attr, max_order_war_size),
    FI_NUMBER(ep_attr, max_order_waw_size),
    FI_NUMBER(ep_attr, tx_ctx_cnt),
    FI_NUMBER(ep_attr, rx_ctx_cnt),
    FI_NUMBER(tx_attr, inject_size),
    FI_NUMBER(tx_attr, size),
    FI_NUMBER(tx_attr, iov_limit),
    FI_NUMBER(tx_attr, rma_iov_limit),
    FI_NUMBER(rx_attr, size),
    FI_NUMBER(rx_attr, iov_limit),
};

void HonoursNumber(const Number& number) {
  Wish wish = {.caps = RmaCaps()};
  Info any;
  if (TryGetInfo(wish, &any) != 0) wish.caps = FI_MSG;
  any = GetInfo(wish);
  const size_t reported = *number.of(any.get());
  for (const size_t asked : {reported, reported == SIZE_MAX ? reported : reported + 1, SIZE_MAX}) {
    if (asked == 0) continue;
    wish.hints = [&](fi_info* hints) { *number.of(hints) = asked; };
    Info info;
    const int result = TryGetInfo(wish, &info);
    if (asked != reported && result == -FI_ENODATA) continue;
    Expect(result == 0, "%zu of %zu reported: %s", asked, reported, NameOf(result).c_str());
    for (fi_info* entry = info.get(); entry != nullptr; entry = entry->next) {
      const size_t got = *number.of(entry);
      Expect(got >= asked, "%zu asked for, %zu in the output", asked, got);
    }
  }
  Note("%zu", reported);
}

const bool kNumberCases = [] {
  for (const Number& number : kNumbers) {
    Registration(
        std::string("getinfo.hint.") + number.name, [&] { HonoursNumber(number); }, kAll);
  }
  return true;
}();

FI_CASE("getinfo.hint.msg_order", kAll) {
  for (const uint64_t order : {FI_ORDER_SAS, FI_ORDER_WAW, FI_ORDER_RAW}) {
    Wish wish = With([=](fi_info* hints) {
      hints->tx_attr->msg_order = order;
      hints->rx_attr->msg_order = order;
    });
    wish.caps = RmaCaps();
    Info info;
    const int result = TryGetInfo(wish, &info);
    if (result == -FI_ENODATA) continue;
    Expect(result == 0, "%s", NameOf(result).c_str());
    Expect((info->tx_attr->msg_order & order) == order, "asked for and not in the output");
  }
  RefusedHint(With([](fi_info* hints) { hints->tx_attr->msg_order = 1ULL << 60; }),
              "an order that nobody has");
}

FI_CASE("getinfo.hint.comp_order", kAll) {
  Honoured(
      With([](fi_info* hints) { hints->tx_attr->comp_order = FI_ORDER_STRICT; }),
      [](const fi_info* entry) {
        return (entry->tx_attr->comp_order & FI_ORDER_STRICT) == FI_ORDER_STRICT;
      },
      "FI_ORDER_STRICT");
}

FI_CASE("getinfo.hint.op_flags", kAll) {
  Honoured(
      With([](fi_info* hints) { hints->tx_attr->op_flags = FI_COMPLETION; }),
      [](const fi_info* entry) { return (entry->tx_attr->op_flags & FI_COMPLETION) != 0; },
      "FI_COMPLETION");
  RefusedHint(With([](fi_info* hints) { hints->tx_attr->op_flags = 1ULL << 62; }),
              "a flag that nobody has");
}

FI_CASE("getinfo.hint.protocol", kAll) {
  const Info any = GetInfo({});
  const uint32_t protocol = any->ep_attr->protocol;
  Honoured(
      With([=](fi_info* hints) { hints->ep_attr->protocol = protocol; }),
      [=](const fi_info* entry) { return entry->ep_attr->protocol == protocol; }, "its own");
  RefusedHint(With([](fi_info* hints) { hints->ep_attr->protocol = FI_PROTO_GNI; }),
              "FI_PROTO_GNI");
}

FI_CASE("getinfo.hint.tclass", kAll) {
  const uint32_t asked = fi_tc_dscp_set(26);
  Honoured(
      With([=](fi_info* hints) { hints->domain_attr->tclass = asked; }),
      [=](const fi_info* entry) {
        return entry->domain_attr->tclass == asked && entry->tx_attr->tclass == asked;
      },
      "the traffic class of the domain (and so of its endpoints)");
}

FI_CASE("getinfo.hint.restricted_comp", kAll) {
  // The application can live with the restriction; a provider without it says so.
  Honoured(
      With([](fi_info* hints) { hints->domain_attr->mode = FI_RESTRICTED_COMP; }),
      [](const fi_info* entry) { return (entry->domain_attr->mode & ~FI_RESTRICTED_COMP) == 0; },
      "FI_RESTRICTED_COMP");
}

// --- addresses, flags, handles -----------------------------------------------------------------

FI_CASE("getinfo.source", kAll) {
  const Info any = GetInfo({});
  Expect(any->src_addr != nullptr && any->src_addrlen > 0, "no source address");
  Note("address of %zu B, format %u", any->src_addrlen, any->addr_format);
}

FI_CASE("getinfo.node_and_service", kAll) {
  const Info any = GetInfo({});
  if (any->addr_format != FI_SOCKADDR_IN && any->addr_format != FI_SOCKADDR) {
    DoesNotApply("no IP addresses");
  }
  const char* node = Asked().node.empty() ? "127.0.0.1" : Asked().node.c_str();
  Info info;
  Need(TryGetInfo({}, &info, node, "7471"), "with node and service");
  Expect(info->dest_addr != nullptr, "no destination address");
  Need(TryGetInfo({}, &info, node, "7471", FI_SOURCE), "FI_SOURCE");
  const auto* bytes = static_cast<const uint8_t*>(info->src_addr);
  Expect(bytes != nullptr && bytes[2] * 256 + bytes[3] == 7471, "FI_SOURCE: not the port asked");
}

// A number that no port has is none, whatever it is modulo 2^16.
FI_CASE("getinfo.service_beyond_ports", kAll) {
  const Info any = GetInfo({});
  if (any->addr_format != FI_SOCKADDR_IN && any->addr_format != FI_SOCKADDR) {
    DoesNotApply("no IP addresses");
  }
  const char* node = Asked().node.empty() ? "127.0.0.1" : Asked().node.c_str();
  for (const char* service : {"65536", "99999", "-1", "18446744073709551616"}) {
    Info info;
    ExpectError(TryGetInfo({}, &info, nullptr, service, FI_SOURCE), -FI_ENODATA, service);
    ExpectError(TryGetInfo({}, &info, node, service, FI_SOURCE), -FI_ENODATA, service);
    ExpectError(TryGetInfo({}, &info, node, service), -FI_ENODATA, service);
  }
  Info info;
  Need(TryGetInfo({}, &info, node, "65535", FI_SOURCE), "the last port");
}

FI_CASE("getinfo.numeric_host", kAll) {
  Info info;
  ExpectError(TryGetInfo({}, &info, "a.name.that.nobody.has", "7471", FI_NUMERICHOST), -FI_ENODATA,
              "FI_NUMERICHOST with a name");
}

FI_CASE("getinfo.prov_attr_only", kOnce) {
  Info info;
  Need(TryGetInfo({}, &info, nullptr, nullptr, FI_PROV_ATTR_ONLY), "FI_PROV_ATTR_ONLY");
  Expect(info->fabric_attr->prov_version != 0, "no version");
}

FI_CASE("getinfo.handle", kMsg) {
  const Listener listener;
  Info info;
  Need(TryGetInfo(With([&](fi_info* hints) { hints->handle = listener.pep.Base(); }), &info),
       "with a passive endpoint as handle");
  Expect(info->handle == listener.pep.Base(), "the handle is not in the output");
}

FI_CASE("getinfo.domain_out", kAll) {
  Info before = GetInfo({});
  Expect(before->domain_attr->domain == nullptr, "a domain before any is open");
  {
    Ground ground, second;
    const Info during = GetInfo(With([&](fi_info* hints) {
      SetName(&hints->domain_attr->name, ground.info->domain_attr->name);
    }));
    Expect(during->domain_attr->domain == ground.domain, "not the first opened instance (%s)",
           during->domain_attr->domain == nullptr ? "NULL" : "another");
  }
  before = GetInfo({});
  Expect(before->domain_attr->domain == nullptr, "a domain that is closed");
}

FI_CASE("getinfo.domain_in", kAll) {
  Ground first, ground;
  Info info;
  Need(TryGetInfo(With([&](fi_info* hints) { hints->domain_attr->domain = ground.domain; }), &info),
       "with a domain");
  for (const fi_info* entry = info.get(); entry != nullptr; entry = entry->next) {
    Expect(entry->domain_attr->domain == ground.domain, "an entry of another domain");
    Expect(strcmp(entry->domain_attr->name, ground.info->domain_attr->name) == 0,
           "an entry of a domain of another name");
  }
}

FI_CASE("getinfo.nic", kOnce) {
  const Info info = GetInfo({});
  if (info->nic == nullptr) Refuse("no fid_nic");
  const auto describes = [](const fid_nic* nic) {
    Expect(nic != nullptr && nic->fid.fclass == FI_CLASS_NIC, "no fid_nic");
    Expect(nic->device_attr != nullptr && nic->device_attr->name != nullptr,
           "a NIC without a name");
    Expect(nic->link_attr != nullptr && nic->link_attr->mtu != 0 &&
               nic->link_attr->state == FI_LINK_UP,
           "a NIC without a link");
  };
  describes(info->nic);
  const Info copy(fi_dupinfo(info.get()));
  Expect(copy != nullptr, "fi_dupinfo");
  describes(copy->nic);
  Expect(std::string(fi_tostr(info.get(), FI_TYPE_INFO)).find(info->nic->device_attr->name) !=
             std::string::npos,
         "fi_tostr does not name it");
  Note("%s", info->nic->device_attr->name);
}

}  // namespace
}  // namespace verbena::fi_test
