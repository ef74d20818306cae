// Modify against the whole transition table, and every attribute's limits.
#include "transport/qp_attributes.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "transport/common/model_host.h"
#include "transport/qp_transitions.h"

namespace verbena::transport {
namespace {

namespace qp_mask = shm::qp_mask;

constexpr uint32_t kAllAttributes = 0x001f'ffff | qp_mask::kRateLimit;

std::vector<uint32_t> BitsOf(uint32_t mask) {
  std::vector<uint32_t> bits;
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    if ((mask & bit) != 0) bits.push_back(bit);
  }
  return bits;
}

class QpAttributesTest : public ::testing::Test {
 protected:
  static QpConfig Config(Service service) {
    QpConfig config;
    config.service = service;
    config.qpn = Qpn(0x11);
    config.max_send_wr = 10;
    config.max_inline_bytes = 64;
    config.port_mtu_bytes = 2048;
    config.max_rd_atomic = 16;
    config.max_dest_rd_atomic = 8;
    return config;
  }
  // Values that every attribute accepts, of a QP that is in `from`.
  static shm::QpAttr GoodValues(QpState from, QpState to) {
    shm::QpAttr attr = {};
    attr.qp_state = static_cast<uint32_t>(to);
    attr.cur_qp_state = static_cast<uint32_t>(from);
    attr.path_mtu = 4;
    attr.qkey = 0x1234;
    attr.rq_psn = 0xff'0001'02;
    attr.sq_psn = 0xff'0003'04;
    attr.dest_qp_num = 0x22;
    attr.qp_access_flags = access::kRemoteWrite;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dgid[15] = 9;
    attr.max_rd_atomic = 16;
    attr.max_dest_rd_atomic = 8;
    attr.min_rnr_timer = 12;
    attr.port_num = 1;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 6;
    return attr;
  }
  // Modify of a fresh QP put into `from`.
  int Try(QpState from, QpState to, Service service, uint32_t mask) {
    QpAttributes attributes(Config(service));
    attributes.set_state(from);
    int error = attributes.Modify(GoodValues(from, to), mask | qp_mask::kState, host_);
    EXPECT_EQ(attributes.state(), error == 0 ? to : from);
    return error;
  }

  ModelMemory memory_;
  ModelHost host_{&memory_};
};

template <typename Visitor>
void ForEveryPair(Visitor visit) {
  for (int service = 0; service < kServiceCount; ++service) {
    for (int from = 0; from < kQpStateCount; ++from) {
      for (int to = 0; to < kQpStateCount; ++to) {
        SCOPED_TRACE(std::string(ServiceName(static_cast<Service>(service))) + " " +
                     QpStateName(static_cast<QpState>(from)) + "->" +
                     QpStateName(static_cast<QpState>(to)));
        visit(static_cast<QpState>(from), static_cast<QpState>(to), static_cast<Service>(service));
      }
    }
  }
}

// --- the table
// ------------------------------------------------------------------------------------

TEST_F(QpAttributesTest, RowsAreAcceptedExactlyAndOtherPairsNever) {
  int accepted = 0;
  ForEveryPair([&](QpState from, QpState to, Service service) {
    const QpTransition* row = FindQpTransition(from, to, service);
    if (row == nullptr) {
      EXPECT_EQ(Try(from, to, service, 0), EINVAL);
      EXPECT_EQ(Try(from, to, service, qp_mask::kSqPsn), EINVAL);
      return;
    }
    ++accepted;
    EXPECT_EQ(Try(from, to, service, row->required), 0);
    EXPECT_EQ(Try(from, to, service, row->required | row->optional), 0);
    for (uint32_t bit : BitsOf(row->required)) {
      EXPECT_EQ(Try(from, to, service, row->required & ~bit), EINVAL) << "without bit " << bit;
    }
    for (uint32_t bit : BitsOf(row->optional)) {
      EXPECT_EQ(Try(from, to, service, row->required | bit), 0) << "with bit " << bit;
    }
    uint32_t foreign = kAllAttributes & ~(row->required | row->optional | qp_mask::kState);
    for (uint32_t bit : BitsOf(foreign)) {
      EXPECT_EQ(Try(from, to, service, row->required | bit), EINVAL) << "with bit " << bit;
    }
  });
  EXPECT_EQ(static_cast<size_t>(accepted), kQpTransitionCount) << "a row stands twice";
}

TEST_F(QpAttributesTest, AnyStateGoesToResetAndErr) {
  ForEveryPair([&](QpState from, QpState to, Service service) {
    if (from == QpState::kSqe && service == Service::kRc) return;  // RC is never there
    if (to == QpState::kReset || to == QpState::kErr) {
      EXPECT_EQ(Try(from, to, service, 0), 0);
    }
  });
}

TEST_F(QpAttributesTest, SkippingAStateIsRefused) {
  ForEveryPair([&](QpState from, QpState to, Service service) {
    bool is_skip = (from == QpState::kReset && to >= QpState::kRtr && to <= QpState::kSqe) ||
                   (from == QpState::kInit && to >= QpState::kRts && to <= QpState::kSqe) ||
                   (from == QpState::kErr && to != QpState::kReset && to != QpState::kErr) ||
                   (to == QpState::kSqe) || (to == QpState::kRtr && from != QpState::kInit);
    if (is_skip) {
      EXPECT_EQ(FindQpTransition(from, to, service), nullptr);
    }
  });
}

// What ibv_rc_pingpong sets on its way up, written out.
TEST_F(QpAttributesTest, RcPingpongsWayUp) {
  QpAttributes attributes(Config(Service::kRc));
  auto modify = [&](QpState to, uint32_t mask) {
    return attributes.Modify(GoodValues(attributes.state(), to), mask | qp_mask::kState, host_);
  };
  EXPECT_EQ(modify(QpState::kInit, 0x38), 0);      // ACCESS_FLAGS, PKEY_INDEX, PORT
  EXPECT_EQ(modify(QpState::kRtr, 0x12'9180), 0);  // AV, PATH_MTU, DEST_QPN, RQ_PSN, MDRA, RNR
  EXPECT_EQ(modify(QpState::kRts, 0x1'2e00), 0);   // TIMEOUT, RETRY, RNR_RETRY, SQ_PSN, MRA
  EXPECT_EQ(attributes.state(), QpState::kRts);
}

TEST_F(QpAttributesTest, WithoutStateTheQpStaysWhereItIs) {
  QpAttributes attributes(Config(Service::kRc));
  shm::QpAttr attr = GoodValues(QpState::kInit, QpState::kErr);
  EXPECT_EQ(attributes.Modify(attr, qp_mask::kQkey, host_), EINVAL);
  attributes.set_state(QpState::kInit);
  EXPECT_EQ(attributes.Modify(attr, qp_mask::kAccessFlags, host_), 0);
  EXPECT_EQ(attributes.state(), QpState::kInit);
  EXPECT_EQ(attributes.access_flags(), access::kRemoteWrite);
}

TEST_F(QpAttributesTest, UnknownStatesAreRefused) {
  QpAttributes attributes(Config(Service::kRc));
  shm::QpAttr attr = {};
  attr.qp_state = kQpStateCount;
  EXPECT_EQ(attributes.Modify(attr, qp_mask::kState, host_), EINVAL);
}

TEST_F(QpAttributesTest, CurrentStateMustBeTheStateItIsIn) {
  for (int named = 0; named <= kQpStateCount; ++named) {
    QpAttributes attributes(Config(Service::kUd));
    attributes.set_state(QpState::kSqe);
    shm::QpAttr attr = GoodValues(QpState::kSqe, QpState::kRts);
    attr.cur_qp_state = static_cast<uint32_t>(named);
    int expected = named == static_cast<int>(QpState::kSqe) ? 0 : EINVAL;
    EXPECT_EQ(attributes.Modify(attr, qp_mask::kState | qp_mask::kCurState, host_), expected)
        << named;
  }
}

TEST_F(QpAttributesTest, SqdIsNotLeftWhileDraining) {
  QpAttributes attributes(Config(Service::kRc));
  attributes.set_state(QpState::kRts);
  auto modify = [&](QpState to) {
    return attributes.Modify(GoodValues(attributes.state(), to), qp_mask::kState, host_);
  };
  EXPECT_EQ(modify(QpState::kSqd), 0);
  EXPECT_TRUE(attributes.sq_draining());
  EXPECT_EQ(modify(QpState::kSqd), EINVAL);
  EXPECT_EQ(modify(QpState::kRts), EINVAL);
  attributes.set_sq_draining(false);
  EXPECT_EQ(modify(QpState::kRts), 0);
  EXPECT_EQ(modify(QpState::kSqd), 0);
  EXPECT_EQ(modify(QpState::kErr), 0);
  EXPECT_FALSE(attributes.sq_draining());
}

TEST_F(QpAttributesTest, DrainedEventIsAskedForEachTime) {
  QpAttributes attributes(Config(Service::kRc));
  attributes.set_state(QpState::kRts);
  shm::QpAttr attr = GoodValues(QpState::kRts, QpState::kSqd);
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(attributes.Modify(attr, qp_mask::kState | qp_mask::kEnSqdAsyncNotify, host_), 0);
  EXPECT_TRUE(attributes.wants_sq_drained_event());
  attributes.set_state(QpState::kRts);
  ASSERT_EQ(attributes.Modify(attr, qp_mask::kState, host_), 0);
  EXPECT_FALSE(attributes.wants_sq_drained_event());
}

// --- values
// ---------------------------------------------------------------------------------------

// Modifies a QP in a state where the attribute is allowed, with one value changed.
class QpAttributeValuesTest : public QpAttributesTest {
 protected:
  using Change = void (*)(shm::QpAttr&);
  int TryRtr(Change change) {
    return TryChanged(QpState::kInit, QpState::kRtr, change, qp_mask::kPkeyIndex);
  }
  int TryRts(Change change) {
    return TryChanged(QpState::kRtr, QpState::kRts, change, qp_mask::kPathMigState);
  }
  int TryInit(Change change) { return TryChanged(QpState::kReset, QpState::kInit, change, 0); }

  int TryChanged(QpState from, QpState to, Change change, uint32_t more) {
    QpAttributes attributes(Config(Service::kRc));
    attributes.set_state(from);
    shm::QpAttr attr = GoodValues(from, to);
    change(attr);
    shm::QpAttr before = {};
    attributes.Query(before);
    uint32_t required = FindQpTransition(from, to, Service::kRc)->required;
    int error = attributes.Modify(attr, required | more | qp_mask::kState, host_);
    shm::QpAttr after = {};
    attributes.Query(after);
    if (error != 0) {
      EXPECT_EQ(std::memcmp(&before, &after, sizeof(after)), 0) << "all or nothing";
    }
    return error;
  }
};

TEST_F(QpAttributeValuesTest, PathMtuIsAnIbMtuNotAboveThePorts) {
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.path_mtu = 1; }), 0);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.path_mtu = 4; }), 0);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.path_mtu = 0; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.path_mtu = 5; }), EINVAL) << "4096 on a port of 2048";
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.path_mtu = 6; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.path_mtu = 1024; }), EINVAL);
}

TEST_F(QpAttributeValuesTest, AddressNeedsGlobalRouteKnownGidPortAndDestination) {
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.ah_attr.is_global = 0; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.ah_attr.sgid_index = 1; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.ah_attr.port_num = 2; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.ah_attr.dgid[15] = 0; }), EINVAL);
}

TEST_F(QpAttributeValuesTest, ThereAreNoAlternatePaths) {
  for (QpState to : {QpState::kRtr, QpState::kRts}) {
    const QpState from = to == QpState::kRtr ? QpState::kInit : QpState::kRtr;
    EXPECT_EQ(TryChanged(
                  from, to, [](shm::QpAttr&) {}, 0),
              0);
    EXPECT_EQ(TryChanged(
                  from, to, [](shm::QpAttr&) {}, qp_mask::kAltPath),
              EINVAL);
  }
}

TEST_F(QpAttributeValuesTest, NumbersStayInTheirFields) {
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.dest_qp_num = 0xff'ffff; }), 0);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.dest_qp_num = 0x100'0000; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.pkey_index = 1; }), EINVAL);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.min_rnr_timer = 31; }), 0);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.min_rnr_timer = 32; }), EINVAL);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.timeout = 31; }), 0);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.timeout = 32; }), EINVAL);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.retry_cnt = 8; }), EINVAL);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.rnr_retry = 7; }), 0);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.rnr_retry = 8; }), EINVAL);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.path_mig_state = 3; }), EINVAL);
  EXPECT_EQ(TryInit([](shm::QpAttr& a) { a.port_num = 2; }), EINVAL);
  EXPECT_EQ(TryInit([](shm::QpAttr& a) { a.port_num = 0; }), EINVAL);
}

TEST_F(QpAttributeValuesTest, ReadsAndAtomicsUpToTheDevicesLimits) {
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.max_rd_atomic = 17; }), EINVAL);
  EXPECT_EQ(TryRts([](shm::QpAttr& a) { a.max_rd_atomic = 0; }), 0);
  EXPECT_EQ(TryRtr([](shm::QpAttr& a) { a.max_dest_rd_atomic = 9; }), EINVAL);
}

TEST_F(QpAttributeValuesTest, AccessFlagsAreThoseOfVerbs) {
  EXPECT_EQ(TryInit([](shm::QpAttr& a) { a.qp_access_flags = 0; }), 0);
  EXPECT_EQ(TryInit([](shm::QpAttr& a) { a.qp_access_flags = access::kRelaxedOrdering; }), 0);
  EXPECT_EQ(TryInit([](shm::QpAttr& a) { a.qp_access_flags = 1u << 31; }), EINVAL);
}

// --- what roles read
// ------------------------------------------------------------------------------

class QpAttributesAtRts : public QpAttributesTest {
 protected:
  void SetUp() override {
    for (QpState to : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
      const QpTransition* row = FindQpTransition(attributes_.state(), to, Service::kRc);
      shm::QpAttr attr = GoodValues(attributes_.state(), to);
      ASSERT_EQ(attributes_.Modify(attr, row->required | qp_mask::kState, host_), 0);
    }
  }
  QpAttributes attributes_{Config(Service::kRc)};
};

TEST_F(QpAttributesAtRts, SettingsComeInTheUnitsOfTheRoles) {
  EXPECT_EQ(attributes_.mtu_bytes(), 2048u);
  EXPECT_EQ(attributes_.remote_qpn(), Qpn(0x22));
  EXPECT_EQ(attributes_.rq_psn(), Psn(0x00'0102)) << "masked to 24 bits";
  EXPECT_EQ(attributes_.sq_psn(), Psn(0x00'0304));
  EXPECT_EQ(attributes_.ack_timeout(), Nanoseconds(4096 << 14));
  EXPECT_EQ(attributes_.retry_count_max(), 7);
  EXPECT_EQ(attributes_.rnr_retry_count_max(), 6);
  EXPECT_EQ(attributes_.path().sgid, host_.gids[0]);
  EXPECT_EQ(attributes_.path().dgid.raw[15], 9);
  EXPECT_EQ(attributes_.PsnsOf(0).value, 1);
  EXPECT_EQ(attributes_.PsnsOf(2048).value, 1);
  EXPECT_EQ(attributes_.PsnsOf(2049).value, 2);
  EXPECT_EQ(attributes_.PsnsOf(0xffff'ffff).value, 0x20'0000);
}

TEST_F(QpAttributesAtRts, QueryTellsWhatWasSetAndTheCapabilities) {
  shm::QpAttr attr = {};
  attributes_.Query(attr);
  EXPECT_EQ(attr.qp_state, static_cast<uint32_t>(QpState::kRts));
  EXPECT_EQ(attr.cur_qp_state, attr.qp_state);
  EXPECT_EQ(attr.path_mtu, 4u);
  EXPECT_EQ(attr.dest_qp_num, 0x22u);
  EXPECT_EQ(attr.ah_attr.dgid[15], 9);
  EXPECT_EQ(attr.max_send_wr, 10u);
  EXPECT_EQ(attr.max_inline_bytes, 64u);
  EXPECT_EQ(attr.port_num, 1);
  EXPECT_EQ(attr.timeout, 14);
}

TEST_F(QpAttributesAtRts, ResetForgetsEverythingButTheCapabilities) {
  shm::QpAttr reset = {};
  ASSERT_EQ(attributes_.Modify(reset, qp_mask::kState, host_), 0);
  shm::QpAttr attr = {};
  attributes_.Query(attr);
  shm::QpAttr fresh = {};
  QpAttributes(Config(Service::kRc)).Query(fresh);
  EXPECT_EQ(std::memcmp(&attr, &fresh, sizeof(attr)), 0);
  EXPECT_TRUE(attributes_.path().dgid.IsZero());
}

TEST(RnrDelayTest, TableOfTheSpec) {
  EXPECT_EQ(RnrDelay(0), Microseconds(655'360));
  EXPECT_EQ(RnrDelay(1), Microseconds(10));
  EXPECT_EQ(RnrDelay(12), Microseconds(640));
  EXPECT_EQ(RnrDelay(31), Microseconds(491'520));
  for (uint8_t code = 2; code < 32; ++code) EXPECT_GT(RnrDelay(code), RnrDelay(code - 1));
}

TEST(AckTimeoutTest, DoublesFromFourMicroseconds) {
  EXPECT_EQ(AckTimeout(1), Nanoseconds(8'192));
  EXPECT_EQ(AckTimeout(31).ns, int64_t{4'096} << 31);
}

}  // namespace
}  // namespace verbena::transport
