// A program with an allocator linked into it (this one has jemalloc) keeps its memory to itself.
#include "core/client/payload_fixture.h"
#include "core/client/process_traits.h"

namespace verbena::client {
namespace {

TEST_F(Payload, AnAllocatorLinkedInForbidsIt) {
  InChild([] {
    EXPECT_FALSE(HasMallocOfLibc());
    File file;
    std::byte* at = MapPages(8);
    EXPECT_EQ(Register(file, at, 8 * kPage)->shared_bytes(), 0u);
    EXPECT_EQ(Register(file, at, 8 * kPage, Sharing::kAll)->shared_bytes(), 8 * kPage)
        << "who insists gets it";
  });
}

}  // namespace
}  // namespace verbena::client
