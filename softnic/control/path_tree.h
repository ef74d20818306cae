// The files that a kernel would show of the instance's NICs in /sys/class/infiniband,
// /sys/class/infiniband_verbs and /dev/infiniband: DIRECTORY/paths/sys/... and .../dev/...
//
// Programs see them where they look by way of verbs_shim/paths. All are plain files and
// directories, no links up and down as in sysfs, so that whoever follows paths step by step stays
// within.
//
// Thread: control.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "softnic/device/device.h"
#include "transport/port/udp/netns.h"

namespace verbena::softnic {

class PathTree {
 public:
  explicit PathTree(std::string instance_directory);

  // Removes what an instance before left in the directory.
  void Clear();
  // Makes the files say what the NICs are now. Each is replaced as a whole, and those that would
  // not change are left alone. Empty, or what is wrong.
  std::string Show(const std::vector<NicStatus>& nics,
                   const transport::NetworkNamespaces& namespaces);

 private:
  void ShowNic(const NicStatus& nic);
  void ShowPort(const std::string& port, const NicStatus& nic);
  void ShowGids(const std::string& port, const NicStatus& nic);
  void ShowInterfaces(const std::string& directory, const NicStatus& nic);
  void ShowBus(const std::string& directory, const NicStatus& nic);
  void Write(const std::string& path, const std::string& line);
  void LinkDevice(uint32_t index);
  bool MakeParents(const std::string& path);
  void Failed(const std::string& path);

  const std::string root_;
  std::map<std::string, std::string> written_;  // by path below the root
  std::string error_;                           // of the first file that could not be written
};

}  // namespace verbena::softnic
