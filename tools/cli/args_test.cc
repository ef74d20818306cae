#include "tools/cli/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace verbena::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Arguments MustParse(const std::vector<std::string>& args) {
  Arguments out;
  std::string error;
  EXPECT_TRUE(ParseArguments(args, &out, &error)) << error;
  return out;
}

std::string MustFail(const std::vector<std::string>& args) {
  Arguments out;
  std::string error;
  EXPECT_FALSE(ParseArguments(args, &out, &error));
  EXPECT_FALSE(error.empty());
  return error;
}

TEST(ArgsTest, NoArgumentsIsHelp) { EXPECT_EQ(MustParse({}).command, Command::kHelp); }

TEST(ArgsTest, RunTakesEverythingAfterDashes) {
  const Arguments a = MustParse(
      {"run", "--nics", "3", "--private", "--dma=process", "--", "ib_write_bw", "--json", "-a"});
  EXPECT_EQ(a.command, Command::kRun);
  EXPECT_EQ(a.nics, 3);
  EXPECT_TRUE(a.private_instance);
  EXPECT_EQ(a.dma, "process");
  EXPECT_FALSE(a.json);
  EXPECT_THAT(a.program, ElementsAre("ib_write_bw", "--json", "-a"));
}

TEST(ArgsTest, RunStopsAtTheFirstWordThatIsNoOption) {
  const Arguments a = MustParse({"run", "ibv_devinfo", "--", "--nics=2"});
  EXPECT_FALSE(a.nics.has_value());
  EXPECT_THAT(a.program, ElementsAre("ibv_devinfo", "--", "--nics=2"));
}

TEST(ArgsTest, RunWantsAProgram) {
  EXPECT_THAT(MustFail({"run"}), HasSubstr("wants a program"));
  EXPECT_THAT(MustFail({"run", "--private", "--"}), HasSubstr("wants a program"));
}

TEST(ArgsTest, NicsIsANumberInRange) {
  for (const char* bad : {"0", "65", "-1", "two", "3x"}) {
    EXPECT_THAT(MustFail({"up", "--nics=" + std::string(bad)}), HasSubstr("1 to 64")) << bad;
  }
  EXPECT_EQ(MustParse({"up", "--nics=64"}).nics, 64);
  EXPECT_THAT(MustFail({"up", "--nics"}), HasSubstr("wants a value"));
}

TEST(ArgsTest, OptionsBelongToTheirCommands) {
  EXPECT_THAT(MustFail({"up", "--private"}), HasSubstr("no option --private"));
  EXPECT_THAT(MustFail({"run", "--json", "--", "x"}), HasSubstr("no option --json"));
  EXPECT_THAT(MustFail({"down", "now"}), HasSubstr("does not take \"now\""));
  EXPECT_TRUE(MustParse({"status", "--json"}).json);
  EXPECT_THAT(MustFail({"status", "--json=yes"}), HasSubstr("takes no value"));
}

TEST(ArgsTest, DmaModesAreNamed) {
  EXPECT_THAT(MustFail({"run", "--dma=pio", "--", "x"}),
              HasSubstr("process, mapped, assisted or auto"));
  EXPECT_EQ(MustParse({"env", "--dma=assisted"}).dma, "assisted");
  EXPECT_THAT(MustFail({"up", "--dma=mapped"}), HasSubstr("no option --dma"));
}

TEST(ArgsTest, NamePrefixIsADeviceName) {
  EXPECT_EQ(MustParse({"up", "--name-prefix", "mlx5_"}).name_prefix, "mlx5_");
  MustFail({"up", "--name-prefix=a/b"});
  MustFail({"up", "--name-prefix=" + std::string(49, 'a')});
}

TEST(ArgsTest, SetBecomesADaemonFlag) {
  EXPECT_THAT(MustParse({"up", "--set", "max-qp=64", "--set=mtu=1024"}).set,
              ElementsAre("--max-qp=64", "--mtu=1024"));
  MustFail({"up", "--set=maxqp"});
  MustFail({"up", "--set=--x=1"});
}

TEST(ArgsTest, ShowKnowsItsKinds) {
  for (const std::string& kind : ShowKinds()) EXPECT_EQ(MustParse({"show", kind}).kind, kind);
  EXPECT_THAT(MustFail({"show", "qps"}), HasSubstr("not \"qps\""));
  EXPECT_THAT(MustFail({"show"}), HasSubstr("wants a kind"));
  EXPECT_TRUE(MustParse({"show", "mr", "--json"}).json);
}

TEST(ArgsTest, EventsNameTheirObject) {
  const Arguments port = MustParse({"event", "--nic", "verbena1", "port_err"});
  EXPECT_EQ(port.event.nic, "verbena1");
  EXPECT_EQ(port.event.name, "port_err");
  EXPECT_EQ(port.event.kind, "port");
  EXPECT_TRUE(port.set.empty()) << "the --nic of `up` is another one";
  const Arguments qp = MustParse({"event", "--nic=a", "--qpn=0x12", "path_mig"});
  EXPECT_EQ(qp.event.kind, "qp");
  EXPECT_EQ(qp.event.number, 0x12u);
  const Arguments cq = MustParse({"event", "--nic=a", "--cq", "3/0x100007", "cq_err"});
  EXPECT_EQ(cq.event.kind, "cq");
  EXPECT_EQ(cq.event.session, 3u);
  EXPECT_EQ(cq.event.number, 0x100007u);
  EXPECT_EQ(MustParse({"event", "--nic=a", "--srqn=5", "srq_err"}).event.kind, "srq");
  EXPECT_THAT(MustFail({"event", "--nic=a"}), HasSubstr("wants a NIC and an event"));
  EXPECT_THAT(MustFail({"event", "port_err"}), HasSubstr("wants a NIC and an event"));
  EXPECT_THAT(MustFail({"event", "--nic=a", "--cq=7", "cq_err"}), HasSubstr("show cq"));
  EXPECT_THAT(MustFail({"event", "--nic=a", "--qpn=x", "path_mig"}), HasSubstr("show qp"));
  EXPECT_THAT(MustFail({"event", "--nic=a", "--qpn=0x", "path_mig"}), HasSubstr("show qp"));
  EXPECT_THAT(MustFail({"event", "--nic=a", "port_err", "port_err"}), HasSubstr("does not take"));
}

TEST(ArgsTest, RecordingsAndFaultsHaveActions) {
  for (const char* kind : {"capture", "trace"}) {
    const Arguments start = MustParse({kind, "start", "/tmp/x", "--limit-mb=3"});
    EXPECT_EQ(start.action, "start");
    EXPECT_EQ(start.file, "/tmp/x");
    EXPECT_EQ(start.limit_bytes, 3u << 20);
    EXPECT_EQ(MustParse({kind, "stop"}).action, "stop");
    EXPECT_EQ(MustParse({kind, "status"}).action, "status");
    const std::string command = "`verbena " + std::string(kind);
    EXPECT_THAT(MustFail({kind}), HasSubstr(command + "` wants start FILE, stop or status"));
    EXPECT_THAT(MustFail({kind, "set"}), HasSubstr(command + "` is start FILE, stop or status"));
    EXPECT_THAT(MustFail({kind, "start"}), HasSubstr(command + " start` wants the name of a file"));
    EXPECT_THAT(MustFail({kind, "stop", "x"}), HasSubstr(command + " stop` does not take \"x\""));
  }
  EXPECT_EQ(MustParse({"fault", "set", "/tmp/x"}).file, "/tmp/x");
  EXPECT_EQ(MustParse({"fault", "report"}).action, "report");
  EXPECT_THAT(MustFail({"fault", "start"}), HasSubstr("set FILE, clear or report"));
}

TEST(ArgsTest, RunRecordsPackets) {
  const Arguments run = MustParse({"run", "--trace=/tmp/t", "--capture", "/tmp/c", "--", "x"});
  EXPECT_THAT(run.records, ElementsAre("trace", "capture"));
  EXPECT_THAT(run.set, ElementsAre("--trace=/tmp/t", "--capture=/tmp/c", "--wire=1"));
  EXPECT_TRUE(run.private_instance);
  EXPECT_THAT(MustFail({"up", "--trace=/tmp/t"}), HasSubstr("no option --trace"));
}

TEST(ArgsTest, WireIsForNicsOfANetworkToo) {
  const Arguments both = MustParse({"run", "--nic", "ip=10.0.0.1", "--wire", "--", "x"});
  EXPECT_THAT(both.set, ElementsAre("--nic=ip=10.0.0.1", "--wire=1"));
  const Arguments recorded =
      MustParse({"run", "--nic", "ip=10.0.0.1", "--capture=/tmp/c", "--", "x"});
  EXPECT_THAT(recorded.set, ElementsAre("--nic=ip=10.0.0.1", "--capture=/tmp/c"));
}

TEST(ArgsTest, PathsOfNetworkNamespacesAreMadeAbsolute) {
  const std::string here = std::filesystem::current_path().string();
  const Arguments up = MustParse({"up", "--nic", "ip=10.0.0.1,netns=ns/a,name=x", "--nic",
                                  "netns=a,ip=10.0.0.2", "--nic", "ip=10.0.0.3"});
  EXPECT_THAT(up.set, ElementsAre("--nic=ip=10.0.0.1,netns=" + here + "/ns/a,name=x",
                                  "--nic=netns=a,ip=10.0.0.2", "--nic=ip=10.0.0.3"));
  EXPECT_TRUE(up.has_netns);
  EXPECT_FALSE(MustParse({"up", "--nic", "ip=10.0.0.1"}).has_netns);
}

TEST(ArgsTest, UnknownCommandIsNamed) {
  EXPECT_THAT(MustFail({"start"}), HasSubstr("\"start\""));
  EXPECT_THAT(MustFail({"help", "start"}), HasSubstr("\"start\""));
}

TEST(ArgsTest, HelpListsOnlyTheCommandsOptions) {
  EXPECT_EQ(MustParse({"run", "--help"}).topic, "run");
  EXPECT_THAT(HelpText("run"), HasSubstr("--private"));
  EXPECT_THAT(HelpText("up"), Not(HasSubstr("--private")));
  for (const char* command : {"run", "up", "down", "status", "env", "devices", "show", "doctor"}) {
    EXPECT_THAT(HelpText(""), HasSubstr(command));
    EXPECT_FALSE(HelpText(command).empty());
  }
  EXPECT_EQ(HelpText("start"), "");
}

}  // namespace
}  // namespace verbena::cli
