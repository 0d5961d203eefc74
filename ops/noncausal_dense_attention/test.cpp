#include "ops/noncausal_dense_attention/spec.h"
#include "replay/room_test.h"
namespace assay { namespace {
TEST(X,Y){ 
  const Family f=noncausal_dense_attention::MakeFamily();
  for (auto& v: f.variants) { auto t=MakeTestCase(f,"noncausal_dense_attention_h32_d64",{{"B",2},{"Nq",51},{"Nk",300}},7,v); auto r=RunAndVerify(t); EXPECT_TRUE(r.passed())<<v<<r.reason; printf("%s %s used %g l2 %g\n",v.c_str(),r.correctness.outputs[0].grade.c_str(),r.correctness.outputs[0].budget_used,r.correctness.outputs[0].max_rel_l2);}
  auto t=MakeTestCase(f,"noncausal_dense_attention_h32_d64",{{"B",1},{"Nq",51},{"Nk",1024}},7); ExpectMutantsKilled(t);
}
TEST(X,Z){ 
  const Family f=noncausal_dense_attention::MakeFamily();
  auto t=MakeTestCase(f,"noncausal_dense_attention_h32_d128",{{"B",1},{"Nq",1120},{"Nk",1120}},7); ExpectMutantsKilled(t);
}
}}
