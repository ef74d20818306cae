// Destinations that the host's network has to be asked about.
#include <cerrno>

#include "softnic/cm/test_world.h"

namespace verbena::softnic {
namespace {

class LookUpTest : public CmWorld {
 protected:
  LookUpTest() {
    looks_up_ = true;
    Start(0, 1);
    program_ = StartProgram(0);
    id_ = NewId(program_);
  }
  std::optional<CmService::LookUp> Next() {
    CmService::LookUp what;
    if (!hosts_[0]->PollLookUp(&what)) return std::nullopt;
    return what;
  }
  // That of a destination which nobody has.
  CmService::LookUp Ask() {
    EXPECT_EQ(ResolveAddress(program_, id_, At("10.0.0.9", 7)), 0);
    const std::optional<CmService::LookUp> what = Next();
    EXPECT_TRUE(what.has_value());
    return what.value_or(CmService::LookUp{});
  }
  void Answer(const CmService::LookUp& what, int error) {
    hosts_[0]->OnLookedUp(what, error);
    Drain(0);
  }

  Program program_;
  shm::CmHandle id_ = 0;
};

TEST_F(LookUpTest, SaysFromWhereToWhereAndForHowLong) {
  const CmService::LookUp what = Ask();
  EXPECT_EQ(what.local, GidOf(At("10.0.0.1")));
  EXPECT_EQ(what.remote, GidOf(At("10.0.0.9")));
  EXPECT_EQ(what.scope_id, 0u);
  EXPECT_EQ(what.timeout_ms, 2000u);
  ASSERT_EQ(ResolveAddress(program_, NewId(program_), At("fe80::9", 7, 7)), 0);
  const std::optional<CmService::LookUp> link_local = Next();
  ASSERT_TRUE(link_local);
  EXPECT_EQ(link_local->scope_id, 7u);
  EXPECT_FALSE(Next());
}

TEST_F(LookUpTest, TheAddressIsResolvedOnceItIsFound) {
  const CmService::LookUp what = Ask();
  ExpectSilence(program_);
  // Whoever asks meanwhile is too early.
  EXPECT_EQ(ResolveAddress(program_, id_, At("10.0.0.9", 7)), EINVAL);
  EXPECT_EQ(CmWorld::Ask(program_, shm::CmOp::kResolveRoute, id_, 2000).error, EINVAL);
  Answer(what, 0);
  Expect(program_, RDMA_CM_EVENT_ADDR_RESOLVED);
  Answer(what, 0);  // once
  ExpectSilence(program_);
  EXPECT_EQ(CmWorld::Ask(program_, shm::CmOp::kResolveRoute, id_, 2000).error, 0);
}

TEST_F(LookUpTest, WhatIsNotFoundIsToldAndMayBeTriedAgain) {
  Answer(Ask(), ETIMEDOUT);
  Expect(program_, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
  Answer(Ask(), 0);
  Expect(program_, RDMA_CM_EVENT_ADDR_RESOLVED);
}

TEST_F(LookUpTest, WithoutAWayTheRequestFailsAndNothingIsTold) {
  const CmService::LookUp what = Ask();
  hosts_[0]->WithdrawLookUp(what);
  Drain(0);
  ExpectSilence(program_);
  Answer(what, 0);  // too late
  ExpectSilence(program_);
  EXPECT_EQ(ResolveAddress(program_, id_, At(IpOf(1).c_str(), 7)), 0);
}

TEST_F(LookUpTest, AnAnswerFindsNobodyWhoseIdentifierIsGone) {
  const CmService::LookUp what = Ask();
  EXPECT_EQ(Destroy(program_, id_), 0u);
  Answer(what, 0);
  ExpectSilence(program_);
}

TEST_F(LookUpTest, TheNicsAddressMayGoMeanwhile) {
  const CmService::LookUp what = Ask();
  std::vector<CmNic> nics = NicsOf(0);
  nics[0].gids = {GidOf(At("10.7.0.1"))};
  nics[0].is_up = false;
  hosts_[0]->SetNics(now_, nics);
  Answer(what, 0);
  const std::optional<shm::CmEvent> event = TryTake(program_);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event, static_cast<uint32_t>(RDMA_CM_EVENT_ADDR_ERROR));
}

TEST_F(LookUpTest, NobodyLooksForWhatIsHereOrForGroups) {
  for (const char* destination : {"127.0.0.2", "10.0.0.1", "239.1.2.3"}) {
    ASSERT_EQ(ResolveAddress(program_, NewId(program_), At(destination, 7)), 0) << destination;
    Expect(program_, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_FALSE(Next()) << destination;
  }
}

}  // namespace
}  // namespace verbena::softnic
