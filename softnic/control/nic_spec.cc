#include "softnic/control/nic_spec.h"

#include <arpa/inet.h>

#include <cstring>

#include "core/shm/attach.h"

namespace verbena::softnic {

namespace {

bool ParseIp(const std::string& text, Gid* out) {
  in_addr ipv4;
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) {
    *out = Gid::FromIpv4(ntohl(ipv4.s_addr));
    return ipv4.s_addr != INADDR_ANY;
  }
  in6_addr ipv6;
  if (inet_pton(AF_INET6, text.c_str(), &ipv6) != 1) return false;
  std::memcpy(out->raw.data(), &ipv6, out->raw.size());
  return !out->IsZero() && !out->IsMulticast();
}

std::string AddAddress(std::string_view value, NicSpec* out) {
  NicAddress address;
  address.text = value;
  size_t percent = value.find('%');
  if (percent != std::string_view::npos) address.interface = value.substr(percent + 1);
  if (!ParseIp(std::string(value.substr(0, percent)), &address.gid)) {
    return "--nic: \"" + address.text + "\" is no IPv4 or IPv6 address";
  }
  out->addresses.push_back(std::move(address));
  return "";
}

}  // namespace

std::string ParseNicSpec(std::string_view text, NicSpec* out) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    std::string error;
    if (item.substr(0, 3) == "ip=") {
      error = AddAddress(item.substr(3), out);
    } else if (item.substr(0, 5) == "name=") {
      out->name = item.substr(5);
      if (out->name.empty() || out->name.size() >= shm::kNicNameBytes ||
          out->name.find('/') != std::string::npos) {
        error = "--nic: a name has 1 to " + std::to_string(shm::kNicNameBytes - 1) +
                " characters without /";
      }
    } else if (item.substr(0, 6) == "netns=") {
      if (!out->netns.empty()) return "--nic: a NIC is in one netns=, not in two";
      out->netns = item.substr(6);
      if (out->netns.empty()) error = "--nic: netns= wants a name of `ip netns`, or a path";
    } else {
      error = "--nic takes ip=ADDRESS, name=NAME and netns=NAME, separated by commas, not \"" +
              std::string(item) + "\"";
    }
    if (!error.empty()) return error;
  }
  if (out->addresses.empty()) return "--nic needs an address of this host, as in --nic ip=10.0.0.1";
  return "";
}

}  // namespace verbena::softnic
