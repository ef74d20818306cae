// The entries of a named AV (FI_SHARED_AV): a file in the instance's directory, which every process
// that opens the name has mapped. The last one that closes it removes it.
#pragma once

#include <string>

#include "fi_shim/av_table.h"

namespace verbena::fi {

class SharedAvStore : public AvStore {
 public:
  ~SharedAvStore() override;

  // `path`: of the file. Made if it is not there, unless `read_only`. Of a file that nobody has
  // open any more (its processes were killed) nothing is left.
  // Errors: -FI_ENOENT: read-only, and it is not there; -FI_EACCES; -FI_EINVAL: no AV of ours, or
  // of another type; -FI_ENOMEM; -FI_EMFILE.
  static int Open(const std::string& path, fi_av_type type, bool read_only, SharedAvStore** out);

  void* base() { return head_; }
  fi_av_type type() const;
  // What Generation reads.
  const std::atomic<uint32_t>* generation() const;

  AvEntry* entries() override;
  uint32_t Count() override;
  uint32_t Generation() override;
  bool BeginChange() override;
  void EndChange() override;
  bool Grow(uint32_t count) override;
  void SetCount(uint32_t count) override;

 private:
  struct Head;

  int OpenFile(const std::string& path, bool read_only);
  int Map(bool read_only);
  int Begin(fi_av_type type);
  // How many entries the file holds, of those that it should; anything beyond is not to be touched.
  uint32_t EntriesInFile();

  std::string path_;
  Head* head_ = nullptr;
  int fd_ = -1;  // locked shared while it is in use; another lock is held around changes
  bool is_read_only_ = false;
  uint32_t entries_in_file_ = 0;
};

}  // namespace verbena::fi
